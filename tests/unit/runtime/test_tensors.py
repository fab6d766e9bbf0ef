"""Memory that a model keeps for its inputs, and inputs for which only types and names are known."""

from typing import Any

import numpy as np
import pytest

from fractune_core.errors import BadModel, FractuneError
from fractune_core.files.compared import Checked
from fractune_runtime.tvm_runtime.drawing import (
    accepted_integers,
    changed,
    random_inputs,
    telling_ranges,
    typical_inputs,
)
from fractune_runtime.tvm_runtime.runtime import aligned_bytes, load_runtime
from fractune_runtime.tvm_runtime.tensors import KeptInputs, TensorSpec, are_worth_keeping, as_array, input_specs

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


TYPICAL = [
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
    within = accepted_integers(TYPICAL, look_up)
    assert within == {"ids": range(100), "kinds": range(2)}
    made = typical_inputs(TYPICAL, within)
    assert (made["attention_mask"] == 1).all()
    assert 50 < made["ids"].max() < 100
    assert set(np.unique(made["kinds"])) == {0, 1}
    assert all(np.isfinite(each).all() for each in look_up(made))
    assert 0.1 <= made["x"].min() <= made["x"].max() <= 1


def test_outputs_that_show_no_wrong_row_leave_ids_small() -> None:
    def raises(_: dict[str, Any]) -> list[Any]:
        raise BadModel("an index is outside of its table")

    assert accepted_integers(TYPICAL, raises) == {}
    assert accepted_integers(TYPICAL, lambda inputs: [look_up(inputs)[0].argmax(-1)]) == {}


def test_the_number_of_the_one_image_is_0() -> None:
    specs = [TensorSpec("ids", "int64", (1, 64)), TensorSpec("images", "int32", (8,)), TensorSpec("x", "float32", (1,))]

    def run(inputs: dict[str, Any]) -> list[Any]:
        if inputs["images"].any():
            raise BadModel("a region of an image that is not there")
        return [np.where(inputs["ids"] < 20, inputs["x"], np.nan)]

    assert accepted_integers(specs, run) == {"ids": range(10), "images": range(1)}


def test_a_size_is_not_zero_and_a_last_place_is_seen() -> None:
    """One of many ids has a table of its own, with three rows."""
    specs = [TensorSpec("ids", "int64", (64,)), TensorSpec("size", "int64", ()), TensorSpec("x", "float32", (1,))]

    def run(inputs: dict[str, Any]) -> list[Any]:
        ids, size = inputs["ids"], inputs["size"]
        if size == 0 or size > 20 or ids.max() >= 50 or ids[7] >= 3:
            raise BadModel("refused")
        return [inputs["x"]]

    assert accepted_integers(specs, run) == {"ids": range(2), "size": range(1, 10)}


def test_random_inputs_of_a_bundle_lie_within_what_its_check_found() -> None:
    inputs = [{"name": name, "dtype": "int64", "shape": [256]} for name in ("ids", "kinds", "attention_mask")]
    checked = Checked("ONNX Runtime 1", {"random": 0.0}, ranges={"ids": (0, 99)}).to_json()
    made = random_inputs(input_specs({"inputs": inputs, "checked": checked}))
    assert 50 < made["ids"].max() < 100
    assert made["kinds"].max() == 1
    assert made["attention_mask"].all()
    assert random_inputs(input_specs({"inputs": inputs}))["ids"].max() == 1


def test_thresholds_are_drawn_such_that_outputs_say_something() -> None:
    """Pitches are sought between two limits. A second limit between 0.1 and 1 is too low."""
    specs = [*(TensorSpec(name, "float32", ()) for name in ("low", "high")), TensorSpec("x", "float32", (1, 64))]
    runs = []

    def run(inputs: dict[str, Any]) -> list[Any]:
        runs.append(inputs)
        found = (inputs["low"] <= 50) & (inputs["high"] >= 90)
        return [np.where(found, inputs["x"], np.nan), np.where(found, 2 * inputs["x"], 0)]

    assert telling_ranges(specs, run, {}) == {"high": range(100, 1001)}
    assert telling_ranges(specs, lambda inputs: [inputs["x"] * inputs["low"]], {}) == {}
    runs.clear()
    assert telling_ranges(specs, lambda inputs: [0 * run(inputs)[1]], {}) == {}
    assert 64 < len(runs) <= 128, "it gives up"


def test_pixels_are_tried_for_data_and_known_ranges_stay() -> None:
    specs = [TensorSpec("ids", "int64", (4,)), TensorSpec("image", "float32", (3, 8, 8))]
    found = telling_ranges(specs, lambda given: [np.maximum(given["image"], 9)], {"ids": range(10)})
    assert found == {"ids": range(10), "image": range(256)}
    assert typical_inputs(specs, found)["image"].max() > 200


def test_ids_that_are_written_as_floats_are_drawn_within_their_table() -> None:
    """As Keras's embeddings have them: numbers below 1 are all the row 0."""
    table = np.random.default_rng(0).standard_normal((40, 3))

    def run(inputs: dict[str, Any]) -> list[Any]:
        if inputs["ids"].max() >= len(table):
            raise FractuneError("index out of range")
        return [table[inputs["ids"].astype(int)]]

    assert telling_ranges([TensorSpec("ids", "float32", (1, 64))], run, {}) == {"ids": range(11)}


def test_changed_inputs_are_numbers_that_the_model_takes_too() -> None:
    made = typical_inputs(TYPICAL, {"ids": range(100)})
    other = changed(made)
    assert sorted(other["ids"].ravel()) == sorted(made["ids"].ravel())
    assert (other["ids"] != made["ids"]).any()
    assert (other["attention_mask"] == 1).all()
    assert other["x"].dtype == np.float32
    assert other["x"].max() == made["x"].max() / 2
