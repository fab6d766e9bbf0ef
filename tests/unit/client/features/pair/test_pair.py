"""`fractune.pair` around the measuring: what it refuses before anything starts, and what it says of what was found."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fractune
from fractune.cli import main
from fractune.errors import BadBundle, BadRequest, FractuneError, ShareUnavailable
from fractune.features.pair import pair as sharing
from fractune.features.pair.result import pairs_table
from fractune.features.pair.run import Arrangement, Program
from fractune_core.analysis.co_location import RoundTimes
from tests.support.client_samples import DEVICE, bundle_bytes
from tests.support.processes.scripted_server import ScriptedServer

Measured = Callable[..., SimpleNamespace]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "a.fractune"
    path.write_bytes(bundle_bytes())
    return path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """In place of the processes: rounds as they are given, and what was asked for."""

    def measure(
        *sides: RoundTimes,
        how: str = "exact",
        latencies: list[list[float]] | None = None,
        others_cores: float = 0.0,
    ) -> SimpleNamespace:
        asked = SimpleNamespace(rates=None, arrangement=None, rounds=0)

        @contextmanager
        def co_located(
            programs: tuple[Program, Program], arrangement: Arrangement, *_: Any
        ) -> Iterator[SimpleNamespace]:
            description = {"variant": "cpu:1", "how": how, "reason": "tuned at 1 core"}
            co_runners = [
                SimpleNamespace(
                    program=program, placement=placement, description=description if program.is_model else {}
                )
                for program, placement in zip(programs, arrangement.placements, strict=True)
            ]
            asked.arrangement = arrangement

            def serve(rates: list[float], requests: int, most_s: float) -> list[list[float]]:
                asked.rates = rates
                assert requests > 0 < most_s
                return latencies or [[0.04] * 120] * len(rates)

            yield SimpleNamespace(
                co_runners=co_runners,
                wholes=co_runners[: len(sides)],
                serve=serve,
                beside_others=lambda run: (run(), others_cores),
            )

        def time_rounds(_: SimpleNamespace, rounds: int, report_line: Callable[[str], None]) -> list[Any]:
            report_line(f"{rounds} rounds")
            asked.rounds = rounds
            return [sides] * rounds

        monkeypatch.setattr(sharing, "co_located", co_located)
        monkeypatch.setattr(sharing, "time_rounds", time_rounds)
        monkeypatch.setattr("fractune.features.pair.run.usable_cores", lambda: [0, 1])
        return asked

    return measure


A = RoundTimes(whole_s=0.02, share_s=0.03, control_s=0.03, together_s=0.033)
B = RoundTimes(whole_s=0.1, share_s=0.12, control_s=0.12, together_s=0.13)


def test_a_pair_is_told_as_a_table_sentences_and_json(measured: Measured, bundle: Path, tmp_path: Path) -> None:
    asked = measured(A, B)
    other = tmp_path / "b.fractune"
    other.write_bytes(bundle_bytes())
    lines: list[str] = []
    found = fractune.pair(bundle, other, progress=lines.append)
    assert (lines, asked.rounds, str(asked.arrangement)) == (
        ["9 rounds"],
        9,
        "cpu:1 + cpu:1, each on its own, of cpu:2",
    )
    text = str(found.table)
    assert "a beside b: cpu:1 + cpu:1, each on its own, of cpu:2" in text
    assert "1.65 (1.65 .. 1.65)" in text  # r of a: 1.5 * 1.1
    assert "throughput together, in a closed loop with one request of each model: a 30.3/s, b 7.69/s" in text
    assert "STP 1.38 (1.38 .. 1.38), ANTT 1.48 (1.48 .. 1.48)" in text
    assert "makespan: together (-10.3 % (-10.3 .. -10.3)" in text
    assert "mean completion: apart (+0.4 % (+0.4 .. +0.4)" in text
    assert "the verdicts disagree" in text
    told = json.loads(json.dumps(found.to_json()))
    assert (told["arrangement"], told["whole"], told["neighbour"]) == ("own units", "cpu:2", None)
    assert (told["makespan_verdict"], told["mean_completion_verdict"]) == ("together", "apart")
    assert [model["name"] for model in told["models"]] == ["a", "b"]
    assert told["models"][0]["r"]["median"] == pytest.approx(1.65)
    assert told["rounds"][0][1]["together_s"] == 0.13


def test_a_tie_says_that_the_interval_decides_nothing(measured: Measured, bundle: Path) -> None:
    double = RoundTimes(0.02, 0.02, 0.02, 0.04)
    measured(double, double)
    said = fractune.pair(bundle, bundle, overlap="cpu:2", progress=False).sentences
    assert any(line.startswith("makespan: tie within the noise") for line in said)


def test_a_bubble_tells_how_sensitive_a_model_is_and_claims_no_cause(measured: Measured, bundle: Path) -> None:
    measured(A)
    found = fractune.pair(bundle, co_runner="bubble:32MiB", progress=False)
    assert len(found.table.cells) == 1
    (line,) = (line for line in found.sentences if "beside bubble:32MiB" in line)
    assert line.startswith("a is slower beside bubble:32MiB: +10.0 %")
    assert line.endswith("was not measured")
    assert not any("makespan" in line for line in found.sentences)
    assert found.to_json()["neighbour"] == "bubble:32MiB"
    measured(RoundTimes(0.02, 0.03, 0.03, 0.03))
    assert any(
        "does not slow a" in line for line in fractune.pair(bundle, co_runner="bubble:1MiB", progress=False).sentences
    )


def test_latencies_at_a_rate_are_percentiles_and_few_requests_have_no_p99(measured: Measured, bundle: Path) -> None:
    asked = measured(A, B, latencies=[[n / 1000 for n in range(1, 101)], [0.2, 0.3]])
    found = fractune.pair(bundle, bundle, rate=[20, 5], progress=False)
    assert asked.rates == [20, 5]
    (line,) = (line for line in found.sentences if "random requests" in line)
    assert "a at 20/s p50 50.0 ms, p99 99.0 ms; a at 5/s p50 200 ms, p99 - (of 2 requests" in line
    assert found.to_json()["models"][1]["p99_s"] is None


def test_without_a_rate_latencies_are_at_30_percent_load(measured: Measured, bundle: Path) -> None:
    asked = measured(A, B)
    found = fractune.pair(bundle, bundle, progress=False)
    assert asked.rates == pytest.approx([0.3 / 0.033, 0.3 / 0.13])
    assert all("40.0 ms / 40.0 ms" in row for row in found.table.cells)
    assert any("a at 9.09/s p50 40.0 ms, p99 40.0 ms; a at 2.31/s" in line for line in found.sentences)


def test_a_rate_that_cannot_be_served_is_not_measured_and_said(measured: Measured, bundle: Path) -> None:
    asked = measured(A, B)
    found = fractune.pair(bundle, bundle, rate=30, progress=False)
    assert asked.rates is None
    assert [line for line in found.notes if "requests a second are too many" in line] == [
        f"a: 30 requests a second are too many for {does} inferences a second together; its queue would grow without "
        "limit, so no latencies were measured"
        for does in ("30.3", "7.69")
    ]


def test_what_makes_the_figures_doubtful_is_noted(measured: Measured, bundle: Path) -> None:
    measured(RoundTimes(0.02, 0.03, 0.0315, 0.033), B, how="none")
    notes = fractune.pair(bundle, bundle, progress=False).notes
    assert sum("an untuned variant ran" in note for note in notes) == 2
    assert sum("A/A control is 1.05" in note for note in notes) == 1


def test_a_disturbed_pair_is_marked(measured: Measured, bundle: Path) -> None:
    measured(A, B, others_cores=0.8)
    found = fractune.pair(bundle, bundle, progress=False)
    assert [cell[:3] for cell in found.table.cells[0][2:5]] == ["<= "] * 3
    assert sum("other programs had 0.80 cores meanwhile, and no plan takes the ratios" in note for note in found.notes)
    assert (found.to_json()["others_cores"], found.measured().others_cores) == (0.8, 0.8)
    assert [row[6] for row in pairs_table([found.measured()]).cells] == ["disturbed"] * 2


def test_on_a_gpu_it_says_that_it_was_never_verified(measured: Measured, tmp_path: Path) -> None:
    path = tmp_path / "g.fractune"
    path.write_bytes(bundle_bytes(device={**DEVICE.to_json(), "kind": "cuda"}))
    measured(RoundTimes(None, 0.03, 0.03, 0.033), RoundTimes(None, 0.03, 0.03, 0.033))
    found = fractune.pair(path, path, shares="mig:1g.18gb,mig:1g.18gb", progress=False)
    assert any(note.startswith("not verified on a GPU") for note in found.notes)
    assert any("s, r, STP and the verdicts are unknown" in note for note in found.notes)
    assert "-" in found.table.cells[0]


@pytest.mark.parametrize(
    ("control", "is_quiet"),
    [((1.02, 0.98, 1.05), True), ((1.04, 1.0, 1.05), False), ((1.0, 0.8, 1.05), False), ((1.0, 0.95, 1.2), False)],
)
def test_a_control_that_is_off_or_wide_is_that_of_a_machine_that_was_not_quiet(
    control: tuple[float, float, float],
    is_quiet: bool,  # noqa: FBT001
) -> None:
    assert sharing._is_quiet(fractune.Estimate(*control)) is is_quiet


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({}, BadRequest, "name two bundles"),
        ({"b": "x.fractune", "co_runner": "bubble:1MiB"}, BadRequest, "name two bundles"),
        ({"b": "missing.fractune"}, BadBundle, "missing.fractune: no such file"),
        ({"co_runner": "bubble:5MiB"}, BadRequest, "write bubble:1MiB, bubble:8MiB, bubble:32MiB, bubble:128MiB"),
        ({"co_runner": "bubble:1MiB", "interleaved": True}, BadRequest, "cannot alternate"),
        ({"co_runner": "bubble:1MiB", "rounds": 6}, BadRequest, "rounds is 6; it must be at least 7"),
        ({"co_runner": "bubble:1MiB", "rate": -1}, BadRequest, "rate is -1; it must be above 0"),
        ({"co_runner": "bubble:1MiB", "rate": float("inf")}, BadRequest, "rate is inf"),
        ({"co_runner": "bubble:1MiB", "rate": [1, 2]}, BadRequest, "rate has 2 numbers for 1 model"),
        ({"co_runner": "bubble:1MiB", "shares": ["cpu:1", "cpu:9999"]}, ShareUnavailable, "may be used here"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(
    bundle: Path, options: dict[str, Any], error: type[FractuneError], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "co_located", None)
    with pytest.raises(error, match=says):
        fractune.pair(bundle, **options)


def test_bundles_of_a_cpu_and_of_a_gpu_share_nothing(bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "g.fractune"
    other.write_bytes(bundle_bytes(device={**DEVICE.to_json(), "kind": "cuda"}))
    with pytest.raises(BadBundle, match="pair needs the same kind"):
        fractune.pair(bundle, other)
    with pytest.raises(BadRequest, match="is in the memory of the CPU"):
        fractune.pair(other, co_runner="bubble:8MiB")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--rate", "many"], 2, "--rate 'many': write requests a second"),
        (["--shares", "cpu:1,cpu:9999"], 4, "may be used here"),
        (["--shares", "cpu:1,cpu:1", "--interleaved"], 2, "give one of them"),
        (["--rounds", "3"], 2, "it must be at least 7"),
    ],
)
def test_the_command_ends_with_one_line_and_a_code(
    bundle: Path, capfd: pytest.CaptureFixture[str], args: list[str], code: int, says: str
) -> None:
    assert main(["pair", str(bundle), str(bundle), *args]) == code
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("fractune: ")
    assert says in line


def test_a_recorded_pair_is_kept_by_the_server(
    bundle: Path, measured: Measured, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    times = RoundTimes(whole_s=1.0, share_s=1.5, control_s=1.5, together_s=2.0)
    measured(times, times)
    command = ["pair", str(bundle), str(bundle), "--server", server.address]
    assert main(command) == 2
    assert "--server and --state are for --record" in capsys.readouterr().err
    assert main([*command, "--record"]) == 0
    shown = capsys.readouterr().out
    (kept,) = server.pairs
    assert f"recorded as {kept.pair_id}" in shown
    assert [each.model_name for each in kept.models] == ["a", "a"]
    assert [each.slowdown.median for each in kept.models] == [2.0, 2.0]
    with fractune.connect(server.address) as client:
        (found,) = client.pairs()
        assert (found.pair_id, found.rounds) == (kept.pair_id, 9)
        assert client.add_pair(found)


def test_a_result_is_shown_though_no_server_keeps_it(
    bundle: Path, measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    times = RoundTimes(whole_s=1.0, share_s=1.5, control_s=1.5, together_s=2.0)
    measured(times)
    assert main(["pair", str(bundle), "--co-runner", "bubble:8MiB", "--record", "--server", "127.0.0.1:1"]) == 5
    shown = capsys.readouterr()
    assert "beside bubble:8MiB" in shown.out
    assert "recorded" not in shown.out
