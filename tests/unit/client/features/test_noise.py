"""`fractune noise` around the measuring: what it refuses, reports and explains, its file, its picture."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fractune
from fractune.cli import main
from fractune.features import noise as api_noise
from fractune.features.noise import draw_noise, explanation_lines
from fractune.local.noise_file import NOISE_FILE, advice_for, load_noise, measuring_text, save_noise
from fractune.local.stack import own_env
from fractune_core.analysis.noise import NoiseAdvice
from fractune_core.errors import StateUnusable

ADVICE = NoiseAdvice(measurers=2, margin=1.25, builds_beside=False, tau=0.95, regret=0.01, measured_at=1_000.0)


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable outlives a test, and no command gets as far as to measure."""
    monkeypatch.setattr(api_noise, "own_env", dict)
    monkeypatch.setattr(api_noise, "measure_noise", lambda *_, **__: pytest.fail("measured"))


def setting(name: str, secs: list[list[float | None]], **changes: Any) -> dict[str, Any]:
    score = {"spread_median": 0.01, "spread_p90": 0.02, "tau": 0.95, "tau_all": 0.9, "regret": 0.0}
    cost = {"failures": 0, "secs_per_candidate": 0.05, "lost": None}
    times = {f"c{number}": each for number, each in enumerate(secs)}
    return {"name": name, **score, **cost, "median_s": times, **changes}


def report() -> dict[str, Any]:
    return {
        "event": "noise",
        "share": "cpu:1",
        "granted": {"units": 1, "units_total": 2, "unit": "core"},
        "device": "cpu-x",
        "operator": "conv2d",
        "candidates": 2,
        "tie_width": 0.02,
        "explanation": None,
        "settings": [
            setting("validation, alone", [[1e-3, 1.1e-3], [2e-3, 2e-3]]),
            setting("first, alone", [[1e-3, None], [2e-3, 2e-3]], tau=None, regret=None, failures=1),
            setting("trial, alone", [[1e-3, 1e-3], [2e-3, 2e-3]]),
        ],
        "advice": {**vars(ADVICE)},
        "race_margin": 1.25,
        "race_keeps_winner": True,
        "notes": ["2 measurers share cores"],
        "wall_s": 61.0,
    }


@pytest.fixture
def asked(nothing_measured: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:  # noqa: ARG001  after it
    """What the measuring was asked for; it measures nothing."""
    seen: dict[str, Any] = {}

    def measure_noise(share: Any, report_line: Callable[[str], None], **options: Any) -> dict[str, Any]:
        seen.update(options, share=str(share), environment=dict(os.environ))
        report_line("building")
        return report()

    monkeypatch.setattr(api_noise, "measure_noise", measure_noise)
    monkeypatch.setattr(api_noise, "own_env", own_env)
    return seen


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--share", "cpu:0"], 2, "cpu:0"),
        (["--share", "nothing"], 2, "unknown mechanism"),
        (["--share", "cpu:1", "--measurers", "0"], 2, "--measurers is [0]"),
        (["--share", "cpu:1", "--measurers", "1,x"], 2, "--measurers '1,x'"),
        (["--share", "cpu:1", "--measurers", ""], 2, "--measurers ''"),
        (["--share", "cpu:1", "--candidates", "7"], 2, "--candidates is 7"),
        (["--share", "cpu:1", "--only", "conv"], 2, "--model"),
        (["--share", "cpu:1", "--model", "/nowhere.onnx"], 3, "no such model file"),
        (["--share", "cpu:1", "--picture", "x.gif"], 2, "--picture"),
        ([], 2, "--share"),
    ],
)
def test_a_wrong_option_is_one_line_before_anything_is_measured(
    options: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["noise", *options, "--state", str(tmp_path)]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fractune: ")
    assert says in line


@pytest.mark.parametrize(
    ("share", "options", "counts"),
    [("cpu:1", [], [1, 2]), ("mps:25", [], [1, 2, 4, 8]), ("mps:25", ["--measurers", "1,3"], [1, 3])],
)
def test_more_measurers_are_tried_on_a_gpu(
    share: str, options: list[str], counts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[int]] = []

    def measure_noise(*_: Any, measurers: list[int], **__: Any) -> dict[str, Any]:
        tried.append(measurers)
        return report()

    monkeypatch.setattr(api_noise, "measure_noise", measure_noise)
    assert main(["noise", "--share", share, *options, "--state", str(tmp_path)]) == 0
    assert tried == [counts]


@pytest.mark.parametrize(
    ("advice", "measurers", "says"),
    [
        (None, 4, "measuring at mps:25: 4 measurers; a trial within 1.25x of the fastest is timed for longer (default"),
        (None, 1, "measuring at mps:25: 1 measurer; a trial within 1.25x"),
        (replace(ADVICE, margin=1.5), 2, "measuring at mps:25: 2 measurers; a trial within 1.5x of the fastest is "),
    ],
)
def test_it_is_said_how_many_measure_and_who_says_so(advice: NoiseAdvice | None, measurers: int, says: str) -> None:
    text = measuring_text("mps:25", advice, measurers)
    assert text.startswith(says)
    assert ("by 'fractune noise' of 1970-01-01: tau 0.95, top-1 regret 1.0 %" in text) is (advice is not None)
    assert ("'fractune noise --share mps:25' measures the best settings" in text) is (advice is None)


def test_a_state_that_cannot_be_used_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / NOISE_FILE).write_text("{")
    assert main(["noise", "--share", "cpu:1", "--state", str(tmp_path)]) == StateUnusable.exit_code
    assert "damaged" in capsys.readouterr().err
    assert main(["noise", "--share", "cpu:1", "--state", str(tmp_path / NOISE_FILE)]) == StateUnusable.exit_code


def test_the_advice_is_printed_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api_noise, "measure_noise", lambda *_, **__: report())
    assert main(["noise", "--share", "cpu:1", "--state", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "within 2.0 %" in said
    assert "note: 2 measurers share cores" in said
    assert "measurers at the same time: 2 (tau 0.95, regret 1.0 %" in said
    assert "builds beside a measurement: no" in said
    assert "racing margin: 1.25" in said
    assert load_noise(tmp_path / NOISE_FILE) == {"cpu-x": {"cpu:1": ADVICE}}
    assert main(["noise", "--share", "cpu:1", "--state", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**report(), "saved": str(tmp_path / NOISE_FILE)}


def test_the_file_keeps_the_other_shares_and_devices(tmp_path: Path) -> None:
    path = tmp_path / "made" / NOISE_FILE
    assert load_noise(path) == {}
    unknown = replace(ADVICE, tau=None, regret=None)
    save_noise(path, "cpu-x", "cpu:1", ADVICE)
    save_noise(path, "cpu-x", "cpu:2", unknown)
    save_noise(path, "cpu-y", "cpu:1", ADVICE)
    save_noise(path, "cpu-x", "cpu:1", replace(ADVICE, measurers=4))
    assert load_noise(path) == {
        "cpu-x": {"cpu:1": replace(ADVICE, measurers=4), "cpu:2": unknown},
        "cpu-y": {"cpu:1": ADVICE},
    }
    assert [each.name for each in path.parent.iterdir()] == [NOISE_FILE]


FIELDS = vars(ADVICE)
DAMAGED: list[Any] = [
    {"d": {"cpu:1": {name: value for name, value in FIELDS.items() if name != "margin"}}},
    {"d": {"cpu:1": {**FIELDS, "measurers": "two"}}},
    [FIELDS],
    FIELDS,
]


@pytest.mark.parametrize("damaged", [*(json.dumps(each).encode() for each in DAMAGED), b"\xff\x00"])
def test_a_damaged_file_is_named(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / NOISE_FILE
    path.write_bytes(damaged)
    with pytest.raises(StateUnusable, match=r"noise\.json is damaged; delete it"):
        load_noise(path)
    with pytest.raises(StateUnusable, match="damaged"):
        save_noise(path, "d", "cpu:1", ADVICE)


def test_the_picture_shows_every_setting(tmp_path: Path) -> None:
    draw_noise(report(), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "tau -, regret -" in text
    assert "tau 0.95, regret 0.0 %" in text
    assert all(f"<!-- {label} -->" in text for label in ("equal", "pass 1", "pass 2"))


def test_the_legend_of_the_noise_names_only_passes_that_are_drawn(tmp_path: Path) -> None:
    made = report()
    made["settings"] = [made["settings"][0], setting("first, alone", [[1e-3, None], [2e-3, None]])]
    draw_noise(made, tmp_path / "noise.svg")
    text = (tmp_path / "noise.svg").read_text()
    assert ("<!-- pass 1 -->" in text, "<!-- pass 2 -->" in text) == (True, False)


def test_a_home_folder_is_meant_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "state").mkdir()
    save_noise(tmp_path / "state" / NOISE_FILE, "d", "cpu:1", ADVICE)
    assert advice_for(Path("~/state"), ["cpu:1"]) == {"cpu:1": ADVICE}


def test_the_advice_is_saved_and_shown(asked: dict[str, Any], tmp_path: Path) -> None:
    lines: list[str] = []
    found = fractune.noise("cpu:1", measurers=[1, 3], candidates=8, state=tmp_path, progress=lines.append)
    assert (asked["share"], asked["measurers"], asked["candidates"], asked["model"]) == ("cpu:1", [1, 3], 8, None)
    assert lines == ["building"]
    assert (found.advice, found.saved, found.notes) == (ADVICE, tmp_path / NOISE_FILE, ("2 measurers share cores",))
    assert load_noise(found.saved) == {"cpu-x": {"cpu:1": ADVICE}}
    assert "measurers at the same time: 2" in str(found.table)
    assert [row["regret"] for row in found.table.rows] == [0.0, None, 0.0]


def test_children_find_our_packages_and_the_environment_is_as_before(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = dict(os.environ)
    fractune.noise("cpu:1", state=tmp_path)
    assert asked["environment"]["PYTHONPATH"].endswith(f"{os.pathsep}/mine")
    assert asked["environment"]["PYTHONSAFEPATH"] == "1"
    assert dict(os.environ) == before
    assert capsys.readouterr().err == "building\n"
    fractune.noise("cpu:1", state=tmp_path, progress=False)
    assert capsys.readouterr().err == ""


FOUND: dict[str, Any] = {
    "pairs": 96,
    "taus": {"steal": 0.51, "waiting": 0.44, "throttling": None},
    "causes": ["steal", "waiting"],
    "calm_spread": 0.02,
    "disturbed_spread": 0.145,
    "spread": 0.1,
    "anchored_spread": 0.11,
    "anchor_spread": 0.162,
}


CAUSES = (
    "the spread is explained by steal (tau 0.51), waiting (tau 0.44): the half of 96 pairs with less steal differs by "
    "2.0 % (median), the other half by 14.5 %"
)
NO_CAUSE = "no counter of the kernel explains the spread (96 pairs)"
DIVIDED = "divided by the anchor's times, pairs differ by {} % in place of 10.0 %".format
VARIES, NOT_EITHER = "the machine's speed varies by 16.2 % (median)", "the machine's speed does not explain it either"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, f"{CAUSES}; {DIVIDED(11.0)}"),
        ({"anchored_spread": 0.03}, f"{CAUSES}; {DIVIDED(3.0)}; the anchor varies by 16.2 % (median)"),
        ({"causes": [], "anchored_spread": 0.03}, f"{NO_CAUSE}; {VARIES}: {DIVIDED(3.0)}"),
        ({"causes": []}, f"{NO_CAUSE}; {NOT_EITHER}: {DIVIDED(11.0)}"),
        (dict.fromkeys(("spread", "anchored_spread", "anchor_spread")), f"{CAUSES}; the anchor could not be timed"),
    ],
)
def test_a_spread_is_told_with_its_causes_and_the_anchor(changes: dict[str, Any], said: str) -> None:
    assert explanation_lines({"explanation": {**FOUND, **changes}}) == [said]
