"""The least CPU limit for a goal, from times that are given."""

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fractune
from fractune.cli import main
from fractune.errors import BadBundle, BadModel, BadRequest
from fractune.features.fit import fit as fitting, measuring, table
from fractune.features.fit.fit import FitResult, settings_text
from fractune.features.fit.measuring import FRACTUNE, ONNX_RUNTIME, OPENVINO, Measured, measure, service_of
from fractune_core.analysis.limit_fitting import Goal, fit as fit_services
from fractune_core.cpu_limits import Service, powers_of_two
from tests.support.client_samples import DEVICE, bundle_at

MINILM = (
    Service(1, (0.0183,), 0.0184, (0.0190,)),
    Service(2, (0.0096,), 0.0192, (0.0102,), spin_s=0.0005),
)
MEASURED = Measured("ONNX Runtime", "1.31.1", MINILM)
searched = functools.cache(fit_services)
"""A search takes a second"""
GOAL = Goal(rate_per_s=18, p99_s=0.05, cores=2, bursts=(0.0, 1.0))


@pytest.fixture(scope="module")
def fitted() -> FitResult:
    return FitResult(Path("minilm.onnx"), MEASURED, GOAL, tuple(searched(MINILM, GOAL)))


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, on which every model takes as long as MiniLM."""
    monkeypatch.setattr(fitting, "usable_cores", lambda: 2)
    monkeypatch.setattr(fitting, "measure", lambda *_: MEASURED)
    monkeypatch.setattr(fitting, "fit_services", searched)


def test_the_smallest_limit_without_a_burst_is_the_best(fitted: FitResult) -> None:
    """Of MiniLM at 18/s, measured: 37 ms with 2 replicas at 900m."""
    found = fractune.fit("minilm.onnx", "18/s", "50ms", progress=False)
    assert found == fitted
    best = found.best
    assert best.limit.burst_us == 0
    assert 750 <= best.limit.quota_m <= 950
    assert found.alternatives[0].limit.quota_m < best.limit.quota_m
    assert found.alternatives[0].limit.burst_us > 0
    assert all(each.limit.quota_m >= best.limit.quota_m for each in found.alternatives if not each.limit.burst_us)
    assert repr(found) == f"FitResult(minilm.onnx: {best.name}, of {len(found.alternatives)} alternatives)"


def test_the_table_calls_latencies_predicted_and_has_the_utilisation(fitted: FitResult) -> None:
    table = fitted.table
    assert table.title == ("minilm.onnx in ONNX Runtime 1.31.1: 18/s with p99 at most 50.0 ms, predicted on 2 cores")
    headings = [column.heading for column in table.columns]
    assert [heading for heading in headings if "p50" in heading or heading.endswith("p99")] == [
        "predicted p50",
        "predicted p99",
    ]
    services = {each.threads: each for each in fitted.measured.services}
    for row, each in zip(table.rows, fitted.alternatives, strict=True):
        assert (row["limit_m"], row["threads"], row["replicas"]) == (
            each.limit.quota_m,
            each.threads,
            each.replicas,
        )
        used = 18 * services[each.threads].cpu_s * 1000 / each.limit.quota_m
        assert row["utilisation"] == pytest.approx(used)
        assert row["predicted"]["p99_s"] == each.prediction.p99_s
    assert "1 thread 18.3 ms (CPU time 18.4 ms); 2 threads 9.60 ms (CPU time 19.2 ms)" in table.notes[0]
    assert not any("note:" in note for note in table.notes)


def test_threads_with_which_no_limit_keeps_the_goal_are_named(fitted: FitResult) -> None:
    assert not any("no limit" in note for note in fitted.table.notes)
    two = replace(fitted, alternatives=tuple(each for each in fitted.alternatives if each.threads == 2))
    assert "no limit keeps the p99 with 1 thread" in two.table.notes


def test_kubernetes_and_onnx_runtime_get_their_settings(fitted: FitResult) -> None:
    best = fitted.best
    cpu = f"{best.limit.quota_m}m"
    assert fitted.resources == f"resources:\n  requests:\n    cpu: {cpu}\n  limits:\n    cpu: {cpu}"
    replicas, session = fitted.settings
    assert replicas.startswith(f"{best.replicas} replicas of the model in this container, with one queue")
    assert f"intra_op_num_threads = {best.threads}," in session
    assert 'session.intra_op.allow_spinning = "0"' in session


def test_openvino_has_streams_in_place_of_replicas(fitted: FitResult) -> None:
    best = fitted.best
    line = replace(fitted, measured=replace(MEASURED, runtime=OPENVINO)).settings[1]
    hint = "LATENCY" if best.replicas == 1 else "THROUGHPUT"
    threads = best.threads * best.replicas
    streams = f"NUM_STREAMS = {best.replicas}, INFERENCE_NUM_THREADS = {threads}"
    assert line.startswith(f"compiled model: PERFORMANCE_HINT = {hint}, {streams}; {best.replicas} infer request")


def test_a_bundle_is_loaded_with_its_threads_or_as_a_pool_and_a_burst_is_named(fitted: FitResult) -> None:
    burst = fitted.alternatives[0]
    lines = settings_text(replace(burst, replicas=1), FRACTUNE, Path("m.fractune"))
    assert lines[0].startswith("1 replica of the model, which answers")
    assert lines[1] == f'fractune.load("m.fractune", threads={burst.threads})'
    assert lines[2] == f"burst of the limit (cpu.max.burst): {burst.limit.burst_us} us"
    line = settings_text(replace(fitted.best, replicas=2, threads=1), FRACTUNE, Path("m.fractune"))[1]
    assert line == 'fractune.ReplicaPool("m.fractune", replicas=2, threads=1)'


def test_other_programs_are_named_as_a_doubt_of_predictions_and_of_a_failure(
    monkeypatch: pytest.MonkeyPatch, fitted: FitResult
) -> None:
    slow = Measured("ONNX Runtime", "1.31.1", (Service(1, (0.020,), 0.015),), {1: 0.25})
    monkeypatch.setattr(fitting, "measure", lambda *_: slow)
    words = "other programs had 0.25 cores during the times of 1 thread, which are too long"
    ways = tuple(each for each in fitted.alternatives if each.threads == 1)
    found = FitResult(Path("minilm.onnx"), slow, GOAL, ways)
    assert any(note.startswith(f"note: {words}") for note in found.table.notes)
    assert found.to_json()["doubts"].startswith(words)
    assert {row[0][:3] for row in found.table.cells} == {"<= "}
    assert found.resources.endswith("m  # at most: the times were disturbed")
    assert found.to_json()["best"]["disturbed"] is True
    with pytest.raises(BadRequest, match=rf"^a p99 of 5 ms is less than one inference takes: .*\. But {words}"):
        fractune.fit("minilm.onnx", "10/s", "5ms", progress=False)


def test_times_of_the_process_become_a_service() -> None:
    timed = {"threads": 3, "loop_secs": [0.01, 0.03], "loop_cpu_s": 0.1, "paced_secs": [0.02] * 4, "pause_cpu_s": 0.008}
    assert service_of(timed) == Service(3, (0.01, 0.03), 0.05, (0.02,) * 4, spin_s=0.001)
    alone = {**timed, "threads": 1}
    assert service_of(alone).spin_s == 0


@pytest.mark.parametrize(("cores", "threads"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_numbers_of_threads_double_up_to_the_cores(cores: int, threads: list[int]) -> None:
    assert powers_of_two(cores) == threads


def test_the_picture_has_a_line_for_each_number_of_threads_and_replicas(tmp_path: Path, fitted: FitResult) -> None:
    one, two = fitted.measured.services
    coarse = replace(fitted, goal=replace(GOAL, step_m=500))
    line = table.p99_by_limit(two, 1, coarse.goal)
    assert min(line) >= 500  # five slices a period for each of two threads
    assert max(line) == 2000
    assert line[max(line)] < line[min(line)]
    assert min(table.p99_by_limit(one, 1, coarse.goal)) * 0.95 >= 18 * one.cpu_s * 1000
    coarse.draw(tmp_path / "fit.svg")
    text = (tmp_path / "fit.svg").read_text()
    assert text.startswith("<?xml")
    for label in ("1 x 1 thread", "2 x 1 thread", "1 x 2 threads", "goal"):
        assert f"<!-- {label} -->" in text


def run(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, list[str]]:
    code = main(["fit", "minilm.onnx", *args])
    printed = capfd.readouterr()
    return code, printed.out, printed.err.splitlines()


def test_the_command_prints_the_block_and_json(capfd: pytest.CaptureFixture[str], fitted: FitResult) -> None:
    code, out, _ = run(capfd, "--rate", "18/s", "--p99", "50ms")
    assert code == 0
    assert f"\n{fitted.resources}\n# {fitted.settings[0]}\n# {fitted.settings[1]}\n" in out
    code, out, err = run(capfd, "--rate", "18/s", "--p99", "50ms", "--json")
    assert (code, err) == (0, [])
    found: dict[str, Any] = json.loads(out)
    assert found == json.loads(json.dumps(fitted.to_json()))
    assert found["best"]["limit_m"] == fitted.best.limit.quota_m
    assert [each["threads"] for each in found["measured"]] == [1, 2]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--rate", "18/s", "--p99", "50ms", "--runtime", "tvm"], "--runtime 'tvm': write onnxruntime or openvino"),
        (["--rate", "18", "--p99", "50ms"], "--rate '18': write requests by time, such as 18/s or 600/min"),
        (["--rate", "18/s", "--p99", "50"], "--p99 '50': write a time such as 50ms, 1.5s or 800us"),
        (["--rate", "18/s", "--p99", "50ms", "--share-steps", "0.05"], "--share-steps '0.05': write thousandths"),
        (["--rate", "18/s", "--p99", "50ms", "--share-steps", "3000m"], "step is 3000m; it must be at most 2000m"),
        (["--rate", "18/s", "--p99", "8ms"], "a p99 of 8 ms is less than one inference takes: 9.6 ms"),
    ],
)
def test_what_cannot_be_ends_with_one_line_and_code_2(
    capfd: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    code, out, err = run(capfd, *args, "--json")
    assert (code, out) == (2, "")
    assert len(err) == 1
    assert err[0].startswith(f"fractune: {says}")


TIMES = {"loop_secs": [0.01], "loop_cpu_s": 0.01, "paced_secs": [0.02], "pause_cpu_s": 0.0}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The share of each process, and what was called in it. Eight cores."""
    seen: list[Any] = []

    @contextmanager
    def timing_process(share: str, _env: object, **_: object) -> Iterator[Callable[..., Any]]:
        def call(method: str, **arguments: Any) -> dict[str, Any]:
            seen.append((share, method, arguments))
            return {
                "version": "1.31",
                "times": [{"threads": n, **TIMES} for n in arguments["threads"]],
                "others_cores": 0.3,
            }

        yield call

    monkeypatch.setattr(measuring, "timing_process", timing_process)
    monkeypatch.setattr(measuring, "usable_cores", lambda: 8)
    return seen


def write_bundle(folder: Path, kind: str = "cpu", *cores: int) -> Path:
    path = folder / "m.fractune"
    path.write_bytes(bundle_at(*cores, device={**DEVICE.to_json(), "kind": kind}))
    return path


def test_an_onnx_file_runs_with_1_2_4_and_8_threads(calls: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"onnx")
    lines: list[str] = []
    found = measure(path, {"x": [1, 4]}, lines.append)
    ((share, method, arguments),) = calls
    assert (share, method, arguments["runtime"]) == ("cpu:8", "time_services", "onnxruntime")
    assert arguments["threads"] == [1, 2, 4, 8]
    assert arguments["shapes"] == {"x": [1, 4]}
    assert (found.runtime, found.version) == (ONNX_RUNTIME, "1.31")
    assert found.others_cores == {1: 0.3, 2: 0.3, 4: 0.3, 8: 0.3}
    assert found.services[1] == Service(2, (0.01,), 0.01, (0.02,))
    assert lines == ["timing m.onnx in ONNX Runtime without a limit, with 1, 2, 4, 8 threads"]


def test_a_bundle_runs_with_its_variants_as_far_as_there_are_cores(calls: list[Any], tmp_path: Path) -> None:
    found = measure(write_bundle(tmp_path, "cpu", 4, 1, 16), {}, lambda _: None)
    ((share, _, arguments),) = calls
    assert (share, arguments["runtime"]) == ("cpu:4", "fractune")
    assert arguments["threads"] == [1, 4]
    assert found.runtime == FRACTUNE


@pytest.mark.usefixtures("calls")
def test_models_that_cannot_be_timed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match=r"m\.fractune has no variant for 8 cores or fewer; tune it at cpu:1"):
        measure(write_bundle(tmp_path, "cpu", 16), {}, lambda _: None)
    with pytest.raises(BadBundle, match="is for a device of kind 'cuda'; a CPU limit needs a bundle for the CPU"):
        measure(write_bundle(tmp_path, "cuda", 1), {}, lambda _: None)
    with pytest.raises(BadRequest, match=r"^inputs: the shapes of m\.fractune were fixed"):
        measure(write_bundle(tmp_path, "cpu", 1), {"x": [1]}, lambda _: None)
    with pytest.raises(BadRequest, match=r"^--runtime is for ONNX files, and m\.fractune is a bundle; leave it out"):
        measure(write_bundle(tmp_path, "cpu", 1), {}, lambda _: None, OPENVINO)
    with pytest.raises(BadBundle, match=r"none\.fractune: no such file; fractune tune MODEL makes a bundle"):
        measure(tmp_path / "none.fractune", {}, lambda _: None)
    with pytest.raises(BadModel, match="no such model file"):
        measure(tmp_path / "none.onnx", {}, lambda _: None)
