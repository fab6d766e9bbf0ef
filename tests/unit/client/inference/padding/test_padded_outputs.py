"""What padding is found to change, for models in NumPy that stand in for a bundle's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pytest

from fractune.inference.bucketed_model import BucketedModel
from fractune.inference.padding.padded_outputs import compare_padded
from fractune.inference.tvm_runtime.tensors import TensorSpec
from fractune_core.files.buckets import OpenAxes

CHANNELS = 8
RNG = np.random.default_rng(3)
TABLE, WEIGHT = RNG.standard_normal((50, CHANNELS)), np.abs(RNG.standard_normal((CHANNELS, CHANNELS)))
TAPS = RNG.standard_normal((3, CHANNELS, CHANNELS))


class InNumPy:
    """A model over the lengths 16 and 64; `compute` gets its padded input."""

    buckets = bucket_sizes = ({"length": 16}, {"length": 64})
    outputs = (TensorSpec("y", "float32", (1, CHANNELS)),)

    def __init__(self, name: str, compute: Callable[..., Any]) -> None:
        is_ids = name == "ids"
        self.inputs = [TensorSpec(name, "int64", (1, None)) if is_ids else TensorSpec(name, "float32", (1, None, 8))]
        self.inputs.append(TensorSpec("mask", "int64", (1, None)))
        opened = [None, "length"] if is_ids else [None, "length", None]
        self.axes = OpenAxes({name: opened, "mask": [None, "length"]}, {"y": [None, None]})
        self._name, self._compute = name, compute

    def run_in(self, bucket: int, inputs: Mapping[str, Any]) -> list[Any]:
        def padded(array: Any) -> Any:
            missing = self.bucket_sizes[bucket]["length"] - array.shape[1]
            return np.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)])

        outputs = self._compute(padded(inputs[self._name]), padded(inputs["mask"]))
        return [outputs.astype("float32")]


def rows(ids: Any) -> Any:
    """Not a number for an id that the table has not, as look-ups give it."""
    return np.where((ids < len(TABLE))[..., None], TABLE[np.minimum(ids, len(TABLE) - 1)], np.nan)


def convolved(x: Any) -> Any:
    wide = np.pad(x, [(0, 0), (1, 1), (0, 0)])
    return sum(wide[:, tap : tap + x.shape[1]] @ TAPS[tap] for tap in range(3))


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("x", lambda x, _: (x @ WEIGHT).max(1)),
        ("x", lambda x, _: np.maximum(convolved(x), 0).max(1)),
        ("x", lambda x, _: x.mean(1)),
        ("ids", lambda ids, _: rows(ids).max(1)),
    ],
    ids=["maximum", "maximum after a convolution", "mean", "maximum of rows"],
)
def test_what_sees_the_padding_may_not_be_padded(name: str, compute: Callable[..., Any]) -> None:
    found = compare_padded(cast("BucketedModel", InNumPy(name, compute)))
    assert not found.proved
    assert "of inputs of length 16 differs" in found.reason


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("x", lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1)),
        ("x", lambda x, mask: np.where(mask[..., None] > 0, convolved(x), -np.inf).max(1)),
        ("ids", lambda ids, mask: np.sqrt((rows(ids) * mask[..., None]).sum(1))),
    ],
    ids=["mean by the mask", "maximum by the mask", "not a number for some values"],
)
def test_what_ends_at_the_mask_may_be_padded(name: str, compute: Callable[..., Any]) -> None:
    with np.errstate(invalid="ignore"):
        assert compare_padded(cast("BucketedModel", InNumPy(name, compute))).proved
