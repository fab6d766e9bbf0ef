"""What `vs_onnxruntime` says of its timings, here made-up ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.ratio_picture import draw_ratios
from benchmarks.vs_onnxruntime import curves, summary, verdict


def row(model: str, ratios: dict[str, list[float]], noise: float = 0.05) -> dict[str, Any]:
    """A model with a step every 60 s; by share the ratios of the steps, the last of which is the final one."""
    count = len(next(iter(ratios.values())))
    steps = [
        {
            "tuning_s": 60.0 * number,
            "trials": number,
            "shares": {share: {"ratio": r[number]} for share, r in ratios.items()},
        }
        for number in range(count)
    ]
    final = {share: {"ratio": each[-1], "ratio_high": each[-1] + noise} for share, each in ratios.items()}
    return {"model": model, "goal": {"steps": steps}, "final": final}


ROWS = [
    row("net", {"cpu:1": [4.0, 2.0], "cpu:2": [4.0, 0.5]}),
    {"model": "torn", "error": "BadModel: torn.onnx"},
    row("other", {"cpu:1": [4.0, 0.98], "cpu:2": [4.0, 1.0]}),
]


def test_the_summary_is_of_geometric_means_and_says_what_failed() -> None:
    told = summary(ROWS)
    assert (told["cases"], told["failed"], told["beaten"]) == (4, ["torn"], 1)
    assert told["ratio"] == pytest.approx(0.98**0.25)
    assert told["by_share"] == {"cpu:1": pytest.approx(1.96**0.5), "cpu:2": pytest.approx(0.5**0.5)}
    assert told["untuned"] == pytest.approx(4.0)


def test_the_last_line_says_the_mean_or_that_there_is_none() -> None:
    assert verdict(ROWS).startswith(
        "vs_onnxruntime, ours over ONNX Runtime: geometric mean 0.995 (cpu:1 1.40, cpu:2 0.71)"
    )
    assert verdict(ROWS).endswith("1 of them beaten beyond the noise; without a search 4.00; failed: torn")
    assert verdict(ROWS[1:2]) == "vs_onnxruntime: no model was timed; failed: torn"


def test_curves_and_their_picture(tmp_path: Path) -> None:
    found = curves(ROWS)
    assert found["cpu:2"] == {"net": [(0.0, 4.0), (60.0, 0.5)], "other": [(0.0, 4.0), (60.0, 1.0)]}
    assert curves(ROWS[1:2]) == {}
    path = tmp_path / "ratios.svg"
    draw_ratios(found, "onnxruntime", path)
    drawn = path.read_text(encoding="utf-8")
    assert drawn.rstrip().endswith("</svg>")
    for text in ("cpu:1", "cpu:2", "net", "other", "onnxruntime", "minutes of tuning"):
        assert f"<!-- {text} -->" in drawn
