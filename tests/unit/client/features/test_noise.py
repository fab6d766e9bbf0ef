"""`fractune.noise` around the measuring: what it refuses and reports, and what explains a spread."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fractune
from fractune.errors import BadModel, BadRequest
from fractune.features import noise as api_noise
from fractune.features.noise import explanation_lines
from fractune.local.noise_file import NOISE_FILE, load_noise

ADVICE = fractune.NoiseAdvice(measurers=2, margin=1.25, builds_beside=False, tau=0.95, regret=0.01, measured_at=1_000.0)
REPORT: dict[str, Any] = {
    "share": "cpu:1",
    "granted": {"units": 1, "units_total": 2, "unit": "core"},
    "device": "cpu-x",
    "operator": "conv2d",
    "candidates": 8,
    "tie_width": 0.02,
    "settings": [
        {
            "name": "validation, alone",
            "spread_median": 0.01,
            "spread_p90": 0.02,
            "tau": 0.95,
            "tau_all": 0.9,
            "regret": None,
            "lost": None,
            "failures": 0,
            "secs_per_candidate": 0.05,
            "median_s": {},
        }
    ],
    "advice": vars(ADVICE),
    "race_margin": 1.25,
    "race_keeps_winner": True,
    "explanation": None,
    "notes": ["2 measurers share cores"],
    "wall_s": 61.0,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the measuring was asked for; it measures nothing."""
    seen: dict[str, Any] = {}

    def measure_noise(share: Any, report_line: Callable[[str], None], **options: Any) -> dict[str, Any]:
        seen.update(options, share=str(share), environment=dict(os.environ))
        report_line("building")
        return REPORT

    monkeypatch.setattr(api_noise, "measure_noise", measure_noise)
    return seen


def test_the_advice_is_saved_and_shown(asked: dict[str, Any], tmp_path: Path) -> None:
    lines: list[str] = []
    found = fractune.noise("cpu:1", measurers=[1, 3], candidates=8, state=tmp_path, progress=lines.append)
    assert (asked["share"], asked["measurers"], asked["candidates"], asked["model"]) == ("cpu:1", [1, 3], 8, None)
    assert lines == ["building"]
    assert (found.advice, found.saved, found.notes) == (ADVICE, tmp_path / NOISE_FILE, ("2 measurers share cores",))
    assert load_noise(found.saved) == {"cpu-x": {"cpu:1": ADVICE}}
    assert "measurers at the same time: 2" in str(found.table)
    assert found.table.rows[0]["regret"] is None


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


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"measurers": []}, BadRequest, "name at least one"),
        ({"measurers": [0]}, BadRequest, "from 1 to 64"),
        ({"candidates": 7}, BadRequest, "candidates is 7; it must be from 8 to 200"),
        ({"only": "conv"}, BadRequest, "pass model too"),
        ({"model": "/nowhere.onnx"}, BadModel, "no such model file"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    asked: dict[str, Any], tmp_path: Path, options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        fractune.noise("cpu:1", state=tmp_path, **options)
    assert asked == {}


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
