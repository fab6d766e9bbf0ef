"""Inputs for which nothing is known but their types and names."""

from __future__ import annotations

from typing import Any

import numpy as np

from fractune.comparing.interleaved import highest_integers, typical_inputs
from fractune_core.errors import BadModel
from fractune_runtime.tvm_runtime.tensors import TensorSpec

SPECS = [
    TensorSpec("ids", "int64", (1, 64)),
    TensorSpec("attention_mask", "int64", (1, 64)),
    TensorSpec("kinds", "int64", (1, 64)),
    TensorSpec("image", "uint8", (1, 64)),
    TensorSpec("x", "float32", (1, 64)),
]
ROWS = {"ids": 500, "kinds": 2}


def look_up(inputs: dict[str, Any]) -> list[Any]:
    """Not a number for an id that its table has not."""
    return [np.where(inputs[name] < rows, inputs["x"], np.nan) for name, rows in ROWS.items()]


def test_ids_are_rows_of_their_tables_and_masks_are_ones() -> None:
    highs = highest_integers(SPECS, look_up)
    assert highs == {"ids": 100, "kinds": 2}
    made = typical_inputs(SPECS, highs)
    assert (made["attention_mask"] == 1).all()
    assert 50 < made["ids"].max() < 100
    assert set(np.unique(made["kinds"])) == {0, 1}
    assert all(np.isfinite(each).all() for each in look_up(made))
    assert 0.1 <= made["x"].min() <= made["x"].max() <= 1


def test_outputs_that_show_no_wrong_row_leave_ids_small() -> None:
    def raises(_: dict[str, Any]) -> list[Any]:
        raise BadModel("an index is outside of its table")

    assert highest_integers(SPECS, raises) == {}
    assert highest_integers(SPECS, lambda inputs: [look_up(inputs)[0].argmax(-1)]) == {}


def test_the_number_of_the_one_image_is_0() -> None:
    specs = [TensorSpec("ids", "int64", (1, 64)), TensorSpec("images", "int32", (8,)), TensorSpec("x", "float32", (1,))]

    def run(inputs: dict[str, Any]) -> list[Any]:
        if inputs["images"].any():
            raise BadModel("a region of an image that is not there")
        return [np.where(inputs["ids"] < 20, inputs["x"], np.nan)]

    assert highest_integers(specs, run) == {"ids": 10, "images": 1}
