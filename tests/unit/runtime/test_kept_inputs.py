"""Memory that a model keeps for its inputs: only what fits is copied there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fractune_runtime.tvm_runtime.runtime import aligned_bytes, load_runtime
from fractune_runtime.tvm_runtime.tensors import KeptInputs, TensorSpec, are_worth_keeping, as_array

SPECS = [TensorSpec("x", "float32", (2, 3)), TensorSpec("n", "int64", ())]
GOOD = {"x": np.arange(6, dtype="float32").reshape(2, 3), "n": np.array(7)}


@pytest.fixture(autouse=True)
def loaded() -> None:
    load_runtime()


def test_arrays_that_fit_are_copied_whatever_their_layout() -> None:
    kept = KeptInputs(SPECS)
    for x in (GOOD["x"], np.asfortranarray(GOOD["x"]), np.repeat(GOOD["x"], 2, axis=1)[:, ::2]):
        tensors = kept.tensors({"n": GOOD["n"], "x": x})
        assert tensors is not None
        assert [as_array(tensor).tolist() for tensor in tensors] == [[[0, 1, 2], [3, 4, 5]], 7]
        assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors)


def test_large_arrays_are_copied_into_the_same_memory_or_used_in_place() -> None:
    kept = KeptInputs([TensorSpec("image", "uint8", (3, 256, 256))])
    room = aligned_bytes(3 * 256 * 256 + 64)
    odd, fitting = room[1:-63].reshape(3, 256, 256), room[:-64].reshape(3, 256, 256)
    odd[...] = 5
    begins = []
    for given in (odd, odd, fitting):
        (tensor,) = kept.tensors({"image": given}) or []
        np.testing.assert_array_equal(as_array(tensor), given)
        begins.append(tensor.data_ptr())
    first, second, in_place = begins
    assert first == second != odd.ctypes.data
    assert in_place == fitting.ctypes.data


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"x": GOOD["x"]},
        {**GOOD, "y": GOOD["x"]},
        {"x": GOOD["x"], "m": GOOD["n"]},
        {**GOOD, "x": GOOD["x"][:1]},
        {**GOOD, "x": GOOD["x"].reshape(3, 2)},
        {**GOOD, "x": GOOD["x"].astype("float64")},
        {**GOOD, "x": GOOD["x"].astype(">f4")},
        {**GOOD, "x": GOOD["x"].tolist()},
        {**GOOD, "x": np.ma.masked_array(GOOD["x"])},
        {**GOOD, "n": np.int64(7)},
        [("x", GOOD["x"]), ("n", GOOD["n"])],
        None,
    ],
)
def test_anything_else_is_left_to_the_full_check(inputs: Any) -> None:
    assert KeptInputs(SPECS).tensors(inputs) is None


def test_the_largest_inputs_have_no_memory_that_stays() -> None:
    assert are_worth_keeping([*SPECS, TensorSpec("image", "float32", (3, 640, 640))])
    assert not are_worth_keeping([*SPECS, TensorSpec("images", "float32", (8, 3, 640, 640))])
