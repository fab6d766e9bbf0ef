"""Constant indices are checked at import, and constant lengths of ReverseSequence work."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from onnx import helper

from fractune_core.errors import BadModel
from fractune_core.tir.foreign_code import refuse_foreign_graph
from fractune_workers.children.importing.passes import prepare
from tests.support.onnx_models import TARGET, imported, onnx_model, run_by_onnxruntime, run_imported, together

Array = npt.NDArray[Any]
BY_BATCH: dict[str, tuple[list[str], dict[str, Any]]] = {
    "TensorScatter": (["cache", "new", "numbers"], {}),
    "Attention": (["new", "cache", "cache", "", "", "", "numbers"], {"is_causal": 1}),
}
"""inputs and attributes of operators that read a number for each batch"""
DATA = np.arange(12, dtype=np.float32).reshape(3, 4)
ROW = np.ones((1, 4), np.float32)
WRONG: list[tuple[str, Array, Array | None, int, int]] = [
    ("Gather", np.array([0, 3]), None, 3, 3),
    ("Gather", np.array(-4), None, -4, 3),
    ("Gather", np.array([[2**40]]), None, 2**40, 3),
    ("GatherElements", np.array([[0, 1, -4, 2]]), None, -4, 3),
    ("GatherND", np.array([[0, 3], [2, 4]]), None, 4, 4),
    ("ScatterElements", np.array([[0, 1, 2, 3]]), ROW, 3, 3),
    ("ScatterND", np.array([[-4]]), ROW, -4, 3),
]


def model_of(operator: str, indices: Array, updates: Array | None, **attributes: Any) -> Any:
    given = {"x": DATA} if updates is None else {"x": DATA, "u": updates}
    node = helper.make_node(operator, ["x", "i", *list(given)[1:]], ["y"], "it", **attributes)
    return onnx_model([node], given, {"i": indices})


@pytest.mark.parametrize(("operator", "indices", "updates", "index", "extent"), WRONG)
def test_a_constant_index_outside_of_the_data_is_refused(
    operator: str, indices: Array, updates: Array | None, index: int, extent: int
) -> None:
    line = rf"node 'it' \({operator}\): its constant index {index} is outside of an axis of {extent}; export the model"
    with pytest.raises(BadModel, match=line):
        imported(model_of(operator, indices, updates))


def test_constant_indices_at_both_ends_are_taken() -> None:
    cases = [np.array([-3, 2, 0, -1]), np.array(-3)]
    found = run_imported(*together([(model_of("Gather", indices, None), {"x": DATA}) for indices in cases]))
    for ours, indices in zip(found, cases, strict=True):
        np.testing.assert_array_equal(ours, DATA[indices])


@pytest.mark.parametrize(
    ("operator", "indices", "updates", "line"),
    [
        ("GatherElements", (1, 5), None, r"its indices have the shape \[1, 5\], its data \[3, 4\]"),
        ("ScatterElements", (1, 5), (1, 5), r"its indices have the shape \[1, 5\], its data \[3, 4\]"),
        ("ScatterElements", (1, 4), (1, 3), r"its updates have the shape \[1, 3\], its indices \[1, 4\]"),
    ],
)
def test_indices_of_a_shape_that_does_not_fit_are_refused(
    operator: str, indices: tuple[int, ...], updates: tuple[int, ...] | None, line: str
) -> None:
    given = None if updates is None else np.zeros(updates, np.float32)
    with pytest.raises(BadModel, match=line):
        imported(model_of(operator, np.zeros(indices, np.int64), given))


def test_a_scatter_by_fewer_indices_than_the_data_has() -> None:
    given: dict[str, Array] = {
        "x": np.arange(120, dtype=np.float32).reshape(4, 5, 6),
        "i": np.arange(12).reshape(2, 3, 2) % 7 - 3,
        "u": np.arange(12, dtype=np.float32).reshape(2, 3, 2) + 70,
    }
    nodes = [
        helper.make_node("ScatterElements", list(given), [reduction], axis=axis, reduction=reduction)
        for axis, reduction in ((0, "none"), (1, "add"), (2, "mul"), (-1, "max"))
    ]
    compare(onnx_model(nodes, given, outputs=[node.output[0] for node in nodes]), given)


def compare(model: Any, given: dict[str, Array]) -> None:
    for ours, theirs in zip(run_imported(model, given), run_by_onnxruntime(model, given), strict=True):
        np.testing.assert_array_equal(ours, theirs)


STEPS = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
AXES: list[tuple[dict[str, Any], list[int]]] = [
    ({"time_axis": 0, "batch_axis": 1}, [1, 2, 4]),
    ({"time_axis": 1, "batch_axis": 0}, [0, 1, 2, 3]),
]


def reversal(lengths: list[int], *, is_constant: bool, **axes: Any) -> tuple[Any, dict[str, Array]]:
    """A model and its inputs."""
    given, weights = {"x": STEPS}, {"l": np.array(lengths)}
    if not is_constant:
        given, weights = {**given, **weights}, {}
    return onnx_model([helper.make_node("ReverseSequence", ["x", "l"], ["y"], "it", **axes)], given, weights), given


def test_sequences_are_reversed() -> None:
    cases = [reversal(lengths, is_constant=each, **axes) for axes, lengths in AXES for each in (False, True)]
    compare(*together(cases))


def test_computed_lengths_are_limited_by_the_steps() -> None:
    model, given = reversal([-1, 5, 2**62], is_constant=False)
    found = run_imported(model, given)[0]
    np.testing.assert_array_equal(found[:, 0], STEPS[:, 0])
    np.testing.assert_array_equal(found[:, 1:], STEPS[::-1, 1:])


@pytest.mark.parametrize("length", [-1, 5])
def test_a_constant_length_outside_of_the_steps_is_refused(length: int) -> None:
    model, _ = reversal([1, 2, length], is_constant=True)
    with pytest.raises(BadModel, match=rf"\(ReverseSequence\): its constant length {length} is outside of 4 steps"):
        imported(model)


INPUTS: dict[str, tuple[dict[str, Array], dict[str, Any]]] = {
    "Gather": ({"i": np.array([0, 2])}, {}),
    "GatherElements": ({"i": np.array([[0, 1, 2, 2]])}, {}),
    "GatherND": ({"i": np.array([[0, 3], [2, 3]])}, {}),
    "ScatterElements": ({"i": np.array([[0, 1, 2, 2]]), "u": ROW}, {"reduction": "add"}),
    "ScatterND": ({"i": np.array([[2]]), "u": ROW}, {}),
    "RoiAlign": ({"corners": np.ones((2, 4), np.float32), "i": np.array([0, 0])}, {}),
    "TopK": ({"k": np.array([2])}, {}),
}


@pytest.mark.parametrize("operator", INPUTS)
def test_the_code_of_an_operator_with_indices_is_read_by_workers(operator: str) -> None:
    """They refuse foreign code."""
    others, attributes = INPUTS[operator]
    data = DATA.reshape(1, 1, 3, 4) if operator == "RoiAlign" else DATA
    weights = others if operator == "TopK" else {}
    node = helper.make_node(operator, ["x", *others], ["y", *(["places"] if operator == "TopK" else [])], **attributes)
    given = {"x": data} if weights else {"x": data, **others}
    module = prepare(imported(onnx_model([node], given, weights)), TARGET)
    functions = [each for each in module.functions.values() if isinstance(each, tvm.tirx.PrimFunc)]
    assert functions
    for function in functions:
        refuse_foreign_graph(json.loads(tvm.ir.save_json(tvm.IRModule({"main": function}))))


@pytest.mark.parametrize("operator", BY_BATCH)
def test_fewer_numbers_than_batches_are_refused(operator: str) -> None:
    names, attributes = BY_BATCH[operator]
    cache, new = np.zeros((4, 2, 8, 8), np.float32), np.zeros((4, 2, 3, 8), np.float32)
    node = helper.make_node(operator, names, ["out"], "n", **attributes)

    def model(numbers: int) -> Any:
        return onnx_model([node], {"cache": cache, "new": new, "numbers": np.zeros(numbers, np.int64)}, opset=24)

    assert imported(model(4))
    with pytest.raises(BadModel, match=r"'numbers' has the shape \[1\] for a batch of 4"):
        imported(model(1))
