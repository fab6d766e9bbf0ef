"""Two bundles beside each other: outputs and times in pairs, of real machine code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fractune
from fractune.errors import BadBundle, BadRequest
from fractune_core.analysis.slowdown_ci import Slowdown


def test_a_bundle_against_itself_agrees_and_is_timed_in_pairs(small: Any) -> None:
    found = fractune.compare(small.bundle, str(small.bundle), share="cpu:1", repeats=6)
    assert found.max_rel_difference == found.max_abs_difference == 0.0
    assert len(found.new_secs) == len(found.last_secs) == 6
    assert len(found.new_paced_secs) == len(found.last_paced_secs) == 6
    assert all(secs > 0 for secs in (*found.new_secs, *found.last_secs, *found.new_paced_secs, *found.last_paced_secs))
    for slowdown in (found.slowdown, found.paced_slowdown):
        assert slowdown.low <= slowdown.median <= slowdown.high
    assert not found.is_slower(tolerance=10.0)
    assert found.new == found.last
    assert found.new.reason


def test_models_that_are_loaded_and_inputs_of_ones_own(small: Any) -> None:
    model = fractune.load(small.bundle, share="cpu:1")
    inputs = {name: np.zeros_like(array) for name, array in model.random_inputs().items()}
    found = fractune.compare(model, model, inputs=inputs, repeats=6)
    assert found.max_abs_difference == 0.0


@pytest.mark.parametrize(
    ("median", "low", "high", "tolerance", "is_slower"),
    [
        (0.10, 0.08, 0.12, 0.03, True),
        (0.10, 0.08, 0.12, 0.15, False),
        (0.10, -0.2, 0.40, 0.03, False),
        (-0.2, -0.3, -0.1, 0.0, False),
    ],
)
def test_slower_is_beyond_the_noise_and_the_tolerance(
    small: Any, median: float, low: float, high: float, tolerance: float, *, is_slower: bool
) -> None:
    choice = fractune.load(small.bundle, share="cpu:1").choice
    in_loop, paced = Slowdown(median, low, high), Slowdown(0.0, -1.0, 1.0)
    found = fractune.Comparison(in_loop, (1.0,), (1.0,), paced, (1.0,), (1.0,), 0.0, 0.0, choice, choice)
    assert found.is_slower(tolerance) is is_slower


def test_what_cannot_be_compared_is_named(small: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="repeats is 2"):
        fractune.compare(small.bundle, small.bundle, repeats=2)
    with pytest.raises(BadBundle, match=r"none\.fractune: no such file"):
        fractune.compare(small.bundle, tmp_path / "none.fractune")
