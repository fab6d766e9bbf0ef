"""What `vs_onnxruntime` says of its timings, here made-up ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import vs_onnxruntime
from benchmarks.support.ratio_picture import draw_ratios
from benchmarks.support.ratio_tables import exact_table, full_table, short_table
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
    final = {
        share: {**_timed(each[-1], noise), "paced": _timed(1.25 * each[-1], noise)} for share, each in ratios.items()
    }
    return {"model": model, "goal": {"steps": steps, "trials": 7}, "final": final}


def _timed(ratio: float, noise: float) -> dict[str, float]:
    edges = {"ratio_low": ratio - noise, "ratio_high": ratio + noise}
    return {"our_s": ratio * 4e-3, "peer_s": 4e-3, "ratio": ratio, **edges}


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
    assert told["paced"]["ratio"] == pytest.approx(1.25 * 0.98**0.25)
    assert told["paced"]["beaten"] == 1
    assert told["paced_over_loop"]["our"] == pytest.approx({"cpu:1": 1.25, "cpu:2": 1.25})
    assert told["paced_over_loop"]["peer"] == pytest.approx({"cpu:1": 1.0, "cpu:2": 1.0})


def test_the_last_line_says_the_mean_or_that_there_is_none() -> None:
    assert verdict(ROWS).startswith(
        "vs_onnxruntime, ours over ONNX Runtime, 4 cases: in a loop geometric mean 0.995 (cpu:1 1.40, cpu:2 0.71), "
        "1 beaten beyond the noise; paced geometric mean 1.244 (cpu:1 1.75, cpu:2 0.88), "
    )
    assert verdict(ROWS).endswith(
        "1 beaten beyond the noise; without a search 4.00; paced over loop: ours cpu:1 1.25, cpu:2 1.25, "
        "ONNX Runtime's cpu:1 1.00, cpu:2 1.00; failed: torn"
    )
    assert verdict(ROWS[1:2]) == "vs_onnxruntime: no model was timed; failed: torn"


def test_requests_at_load_have_a_mean_and_a_column_where_they_were_timed() -> None:
    timed = row("net", {"cpu:1": [1.0], "cpu:2": [1.0]})
    for share, ratio in (("cpu:1", 0.5), ("cpu:2", 2.0)):
        timed["final"][share]["at_load"] = {"our_p50_s": ratio * 4e-3, "peer_p50_s": 4e-3, "ratio": ratio}
    assert summary([timed])["at_load"] == {"ratio": pytest.approx(1.0), "by_share": {"cpu:1": 0.5, "cpu:2": 2.0}}
    assert "; p50 at 30 % load geometric mean 1.000 (cpu:1 0.50, cpu:2 2.00); without" in verdict([timed])
    assert full_table([timed]).splitlines()[2].endswith("| 0.50 (2.00 ms / 4.00 ms) | 7 |")
    assert "load" not in verdict(ROWS)


def test_the_full_table_has_both_kinds_of_times_and_the_short_one_two_models_a_line() -> None:
    models = [{**ROWS[0], "model": name} for name in ("squeezenet", "magika", "crnn")]
    short = short_table([*models, *ROWS[1:2]]).splitlines()
    assert short[0] == "| model | `cpu:1` | `cpu:2` | model | `cpu:1` | `cpu:2` |"
    ratios = "2.00 (1.95 .. 2.05) | 0.50 (0.45 .. 0.55)"
    assert short[2:] == [
        f"| SqueezeNet | {ratios} | magika | {ratios} |",
        f"| CRNN (bidirectional LSTM) | {ratios} |  |  |  |",
    ], "a model that failed has no cell"
    full = full_table(ROWS).splitlines()
    assert full[3] == (
        "| net | `cpu:2` | 4.00 after 0 s | 2.00 ms | 4.00 ms | 0.50 (0.45 .. 0.55) "
        "| 2.50 ms | 4.00 ms | 0.62 (0.57 .. 0.68) | - | 7 |"
    )


def test_quantized_models_have_a_table_beside_the_exact_session() -> None:
    timed = row("int8", {"cpu:1": [0.5]})
    timed["final"]["cpu:1"]["exact"] = {**_timed(0.4, 0.05), "paced": _timed(0.3, 0.05)}
    assert exact_table([*ROWS, timed]).splitlines()[2:] == [
        "| int8 | `cpu:1` | 1.60 ms | 4.00 ms | 0.40 (0.35 .. 0.45) | 1.20 ms | 4.00 ms | 0.30 (0.25 .. 0.35) |"
    ]
    assert exact_table(ROWS) == ""
    assert summary([*ROWS, timed])["exact"]["ratio"] == pytest.approx(0.4)
    assert summary(ROWS)["exact"]["ratio"] is None


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


def test_the_file_has_the_settings_and_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "ratios.json"
    monkeypatch.setattr("sys.argv", ["vs_onnxruntime", "--quick", "--min-gain", "0.1", "--out", str(out)])
    monkeypatch.setattr(vs_onnxruntime, "_row", lambda name, _: {**ROWS[0], "model": name, "operators": 1})
    monkeypatch.setattr(vs_onnxruntime, "_print_row", lambda _: None)
    vs_onnxruntime.main()
    written = json.loads(out.read_text(encoding="utf-8"))
    assert (written["min_gain"], [each["model"] for each in written["models"]]) == (0.1, ["squeezenet"])
