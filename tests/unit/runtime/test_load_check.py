"""`fractune.load(..., check=True)`: the variant that serves is compared with another before it serves."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import fractune
from fractune_core.errors import OutputsDiffer
from tests.support.wrong_weights import with_other_weight
from tests.unit.conftest import Small
from tests.unit.runtime.choosing.test_variants import with_variants


@pytest.mark.parametrize("variant", ["cpu:1", "untuned"])
def test_a_variant_that_computes_something_else_is_not_served(small: Small, tmp_path: Path, variant: str) -> None:
    """Two hundredths more in one weight; the check does not know which of the two variants is wrong."""
    wrong = with_other_weight(small.bundle, tmp_path / "wrong.fractune", variant, 1.02)
    assert fractune.load(wrong, share="cpu:1").choice.variant == "cpu:1"
    with pytest.raises(OutputsDiffer, match="'cpu:1' was to serve, and it and 'untuned' differ in the output 'y' by"):
        fractune.load(wrong, share="cpu:1", check=True)


def test_right_bundles_are_served_without_a_word(small: Small, encoders: Path, in_parts: Small, tmp_path: Path) -> None:
    """Of several shapes and in parts too; and a weight that differs by less than outputs that are as right."""
    rounded = with_other_weight(small.bundle, tmp_path / "rounded.fractune", "cpu:1", 1 + 1e-6)
    buckets = sorted(encoders.glob("*.fractune"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in (small.bundle, rounded, *buckets, in_parts.bundle):
            model = fractune.load(path, share="cpu:1", check=True)
            assert all(np.isfinite(each).all() for each in model.run(model.random_inputs()) if each.dtype.kind == "f")


def test_a_variant_that_is_alone_is_not_checked_which_is_said(small: Small, tmp_path: Path) -> None:
    alone = with_variants(small, tmp_path / "alone.fractune", "untuned")
    with pytest.warns(RuntimeWarning) as told:
        fractune.load(alone, share="cpu:1", check=True)
    assert str(told[-1].message) == "alone.fractune was not checked: it has one variant alone"
    assert told[-1].filename == __file__
