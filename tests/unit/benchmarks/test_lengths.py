"""The line of ratios of `benchmarks.lengths`, and the lengths that it draws."""

from __future__ import annotations

import statistics

import pytest

from benchmarks import lengths
from benchmarks.support.squad_lengths import LONGEST, draw_lengths


def test_the_last_line_compares_with_the_better_runtime() -> None:
    p99s = {"fractune": 0.03, "fractune as loaded": 0.02, "onnxruntime": 0.05, "openvino": 0.04}
    ratios = {"fractune": [0.9, 0.88, 0.93], "fractune as loaded": [0.8, 0.78, 0.83]}
    ways = {name: {"p99_s": secs} for name, secs in p99s.items()}
    assert lengths._line({"share": "cpu:1", "ways": ways, "best": "openvino", "ratios": ratios}) == (
        "cpu:1: fractune 0.90 (0.88 .. 0.93) of openvino's time, p99 0.75, "
        "fractune as loaded 0.80 (0.78 .. 0.83) of openvino's time, p99 0.50"
    )


def test_lengths_are_those_that_were_published() -> None:
    drawn = draw_lengths(4000, 1)
    assert draw_lengths(4000, 1) == drawn
    assert min(drawn) > 32
    assert max(drawn) <= LONGEST
    assert 140 < statistics.median(drawn) < 160


def test_phases_are_those_of_the_first_length_and_the_mean_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = {"starting": 1.0, "timing": 9.0}, {"timing": 6.0}, {"timing": 4.0}
    lengths._print_phases(
        {"phases_s": {"four": [first, second, third], "one": [first]}, "tuning_s": {"four": 25.0, "one": 12.0}}
    )
    assert capsys.readouterr().out.splitlines() == [
        "  starting        1.0 s, each further length    0.0 s",
        "  timing          9.0 s, each further length    5.0 s",
        "  four: 25.0 s, 5.0 s of them outside of jobs",
        "  one: 12.0 s, 2.0 s of them outside of jobs",
    ]
