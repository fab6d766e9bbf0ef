"""Memory that a model keeps for its inputs: only what fits is copied there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fractune.inference.tvm_runtime.kept_inputs import KeptInputs, are_small
from fractune.inference.tvm_runtime.runtime import load_runtime
from fractune.inference.tvm_runtime.tensors import TensorSpec, as_array

SPECS = [TensorSpec("x", "float32", (2, 3)), TensorSpec("n", "int64", ())]
GOOD = {"x": np.arange(6, dtype="float32").reshape(2, 3), "n": np.array(7)}


@pytest.fixture(autouse=True)
def loaded() -> None:
    load_runtime()


def test_arrays_that_fit_are_copied_whatever_their_layout() -> None:
    kept = KeptInputs(SPECS)
    for x in (GOOD["x"], np.asfortranarray(GOOD["x"]), np.repeat(GOOD["x"], 2, axis=1)[:, ::2]):
        assert kept.fill({"n": GOOD["n"], "x": x})
        assert [as_array(tensor).tolist() for tensor in kept.tensors] == [[[0, 1, 2], [3, 4, 5]], 7]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in kept.tensors)


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
    assert not KeptInputs(SPECS).fill(inputs)


def test_only_small_inputs_are_copied() -> None:
    assert are_small(SPECS)
    assert not are_small([*SPECS, TensorSpec("image", "uint8", (3, 224, 224))])
