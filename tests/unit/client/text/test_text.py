"""Numbers as people read them."""

from __future__ import annotations

import pytest

from fractune.text.text import counts_text, ratio_text, roof_notes, slowdown_text, span_text, time_text
from fractune_core.analysis.slowdown_ci import Estimate


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (None, "-"),
        (0.0, "-"),
        (float("inf"), "-"),
        (8.1e-9, "8.10 ns"),
        (1.234e-5, "12.3 us"),
        (4.5e-3, "4.50 ms"),
        (0.01, "10.0 ms"),
        (0.27, "270 ms"),
        (0.9996, "1000 ms"),
        (2.0, "2.00 s"),
    ],
)
def test_times_are_written_with_a_fitting_unit(secs: float | None, text: str) -> None:
    assert time_text(secs) == text


def test_spans_ratios_and_counts() -> None:
    assert [span_text(42.4), span_text(185)] == ["42 s", "3 min 05 s"]
    assert [ratio_text(3.0, 2.0), ratio_text(None, 2.0), ratio_text(1.0, 0.0)] == ["1.50x", "-", "-"]
    assert [counts_text({"b": 2, "a": 1}), counts_text({})] == ["a 1, b 2", "none"]


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (None, "-"),
        (Estimate(1.4, 1.35, 1.5), "1.40 (1.35 .. 1.50)"),
        (Estimate(0.55, 0.5, 0.625), "speed-up 1.82x (1.60 .. 2.00)"),
        (Estimate(0.98, 0.95, 1.02), "0.98 (0.95 .. 1.02)"),
    ],
)
def test_a_slow_down_below_one_is_a_speed_up_unless_it_is_noise(factor: Estimate | None, text: str) -> None:
    assert slowdown_text(factor) == text


@pytest.mark.parametrize(
    ("parts", "said"),
    [((), ""), ((None, 0.5), ""), ((1.2, None), "More than 100 %"), ((None, None), "No part of a roof is known")],
)
def test_an_unusual_column_of_roof_parts_has_a_note(parts: tuple[float | None, ...], said: str) -> None:
    notes = roof_notes(parts, "core", has_roof=True)
    assert "".join(notes).startswith(said)
    assert bool(notes) is bool(said)
