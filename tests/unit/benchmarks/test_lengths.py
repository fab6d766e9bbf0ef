"""The line of ratios of `benchmarks.lengths`, and the lengths that it draws."""

from __future__ import annotations

import statistics

from benchmarks import lengths
from benchmarks.support.squad_lengths import LONGEST, draw_lengths


def test_the_last_line_compares_with_the_better_runtime() -> None:
    ways = {"fractune": {"p99_s": 0.03}, "onnxruntime": {"p99_s": 0.05}, "openvino": {"p99_s": 0.04}}
    found = {"share": "cpu:1", "ways": ways, "best": "openvino", "ratio": [0.9, 0.88, 0.93]}
    assert lengths._line(found) == "cpu:1: 0.90 (0.88 .. 0.93) of openvino's time, p99 0.75"


def test_lengths_are_those_that_were_published() -> None:
    drawn = draw_lengths(4000, 1)
    assert draw_lengths(4000, 1) == drawn
    assert min(drawn) > 32
    assert max(drawn) <= LONGEST
    assert 140 < statistics.median(drawn) < 160
