"""Rows of `vs_onnxruntime` as the Markdown tables of README.md and docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from fractune.text.text import span_text, time_text
from fractune_core.served import LOAD_TEXT

NAMES = {
    "squeezenet": "SqueezeNet",
    "resnet50": "ResNet-50",
    "densenet121": "DenseNet-121",
    "shufflenet": "ShuffleNet",
    "inception_v2": "Inception v2",
    "ocr_detection": "OCR detection",
    "ocr_recognition": "OCR recognition",
    "crnn": "CRNN (bidirectional LSTM)",
    "crnn_dynamic": "CRNN, dynamic int8",
    "smart_turn": "smart-turn, int8",
    "silero": "Silero VAD (LSTM)",
    "silero_ifless": "Silero VAD (convolutions)",
    "minilm": "MiniLM",
    "minilm_dynamic": "MiniLM, dynamic int8",
    "transformer": "3 layers of a transformer",
    "yolov8n": "YOLOv8n",
    "speech_embedding": "speech embedding",
}
"""by the benchmark's name, where people know a model by another"""

Rows = Sequence[Mapping[str, Any]]


def short_table(rows: Rows) -> str:
    """Two models a line: at each share the ratio of times in a loop. For README.md."""
    timed = _timed(rows)
    shares = list(dict.fromkeys(share for row in timed for share in row["final"]))
    cells = [
        [_name(row), *(_ratio(row["final"][share]) if share in row["final"] else "" for share in shares)]
        for row in timed
    ]
    lines = [
        [*left, *right] for left, right in zip_longest(cells[::2], cells[1::2], fillvalue=[""] * (1 + len(shares)))
    ]
    return _markdown(["model", *(f"`{share}`" for share in shares)] * 2, lines)


def full_table(rows: Rows) -> str:
    """A line for each model and share: times of both sides too. For docs/performance.md."""
    headings = (
        *("model", "share", "without a search: ratio, time", "in a loop: tuned", "ONNX Runtime"),
        *("ratio, 95 % interval", "paced: tuned", "ONNX Runtime", "ratio, 95 % interval"),
        *(f"p50 at {LOAD_TEXT}: ratio (tuned / ONNX Runtime)", "trials"),
    )
    return _markdown(headings, [_cells(row, share) for row in _timed(rows) for share in row["final"]])


def exact_table(rows: Rows) -> str:
    """As `full_table`, of quantized models beside ONNX Runtime with exact products; empty without such models."""
    headings = (
        *("model", "share", "in a loop: tuned", "ONNX Runtime exact", "ratio, 95 % interval"),
        *("paced: tuned", "ONNX Runtime exact", "ratio, 95 % interval"),
    )
    lines = [
        [row["model"], f"`{share}`", *_both_times(timed["exact"])]
        for row in _timed(rows)
        for share, timed in row["final"].items()
        if timed.get("exact")
    ]
    return _markdown(headings, lines) if lines else ""


def _name(row: Mapping[str, Any]) -> str:
    name = str(row["model"])
    return NAMES.get(name, name)


def _timed(rows: Rows) -> Rows:
    """Those that did not fail."""
    return [row for row in rows if "final" in row]


def _cells(row: Mapping[str, Any], share: str) -> list[str]:
    timed, first = row["final"][share], row["goal"]["steps"][0]
    return [
        row["model"],
        f"`{share}`",
        f"{first['shares'][share]['ratio']:.2f} after {span_text(first['tuning_s'])}",
        *_both_times(timed),
        _p50_at_load(timed),
        str(row["goal"]["trials"]),
    ]


def _both_times(timed: Mapping[str, Any]) -> list[str]:
    """In a loop and paced."""
    return [*_times(timed), *_times(timed["paced"])]


def _p50_at_load(timed: Mapping[str, Any]) -> str:
    """`-` in results that were timed without it."""
    at_load = timed.get("at_load")
    if at_load is None:
        return "-"
    return f"{at_load['ratio']:.2f} ({time_text(at_load['our_p50_s'])} / {time_text(at_load['peer_p50_s'])})"


def _times(timed: Mapping[str, Any]) -> list[str]:
    return [time_text(timed["our_s"]), time_text(timed["peer_s"]), _ratio(timed)]


def _ratio(timed: Mapping[str, Any]) -> str:
    return f"{timed['ratio']:.2f} ({timed['ratio_low']:.2f} .. {timed['ratio_high']:.2f})"


def _markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
