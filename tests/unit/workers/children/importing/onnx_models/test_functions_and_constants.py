"""A model's own functions, and constants that state only the numbers that are not zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

from fractune_core.errors import BadModel
from fractune_core.operators import refused_node
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported

Array = npt.NDArray[Any]
X = {"x": np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)}


def calling(own: int, version: int, operator: str = "Softmax", **attributes: Any) -> onnx.ModelProto:
    """A model of opset `version` that calls a function of opset `own`, which calls another one."""
    inner = [helper.make_node(operator, ["a"], ["b"], **attributes)]
    outer = [helper.make_node("Inner", ["a"], ["s"], domain="local"), helper.make_node("Relu", ["s"], ["b"])]
    model = onnx_model([helper.make_node("Outer", ["x"], ["y"], "call", domain="local")], X, opset=version)
    model.opset_import.append(helper.make_opsetid("local", 1))
    opsets = [helper.make_opsetid("", own), helper.make_opsetid("local", 1)]
    for name, nodes in (("Outer", outer), ("Inner", inner)):
        model.functions.append(helper.make_function("local", name, ["a"], ["b"], nodes, opsets))
    return model


@pytest.mark.parametrize(("own", "version"), [(17, 21), (21, 13), (11, 12)])
def test_a_function_of_another_opset(own: int, version: int) -> None:
    model = calling(own, version, axis=1)
    np.testing.assert_allclose(run_imported(model, X)[0], run_by_onnxruntime(model, X)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("own", "version", "operator", "attributes"),
    [(11, 21, "Softmax", {}), (17, 21, "ReduceMean", {"axes": [1]}), (21, 11, "Softmax", {})],
)
def test_a_function_whose_operators_have_changed(own: int, version: int, operator: str, attributes: Any) -> None:
    with pytest.raises(BadModel, match=rf"it is a function of opset {own}, in which {operator} has another form than"):
        imported(calling(own, version, operator, **attributes))


@pytest.mark.parametrize("places", [np.array([[0, 1], [2, 3]]), np.array([1, 11])])
def test_a_sparse_constant(places: Array) -> None:
    values = numpy_helper.from_array(np.array([2, 5], np.float32))
    sparse = onnx.SparseTensorProto(values=values, indices=numpy_helper.from_array(places), dims=[3, 4])
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=sparse),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    expected = X["x"].copy()
    expected[[0, 2], [1, 3]] += [2, 5]
    np.testing.assert_array_equal(run_imported(onnx_model(nodes, X), X)[0], expected)


def test_a_sparse_constant_is_counted_before_it_is_made() -> None:
    values, places = numpy_helper.from_array(np.ones(1, np.float32)), numpy_helper.from_array(np.zeros(1, np.int64))
    sparse = onnx.SparseTensorProto(values=values, indices=places, dims=[2**20, 2**20])
    node = helper.make_node("Constant", [], ["c"], sparse_value=sparse)
    with pytest.raises(BadModel, match="is the limit"):
        imported(onnx_model([node, helper.make_node("Add", ["x", "c"], ["y"])], X))


@pytest.mark.parametrize("name", ["", "mine"])
def test_a_refusal_within_a_decomposition_names_the_files_own_node(name: str) -> None:
    """`Bernoulli` becomes a random number, which is refused, and a comparison."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Bernoulli", ["r"], ["y"], name)]
    with pytest.raises(BadModel) as caught:
        imported(onnx_model(nodes, X))
    refused = refused_node(str(caught.value))
    assert refused is not None
    assert refused.is_node(name, "y", "Bernoulli")
    assert not refused.is_node("", "r", "Relu")
