"""An `If`: each branch is a function that runs only when it is taken, planned and fused like a model."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from fractune_core.errors import BadModel
from fractune_workers.children.compiling.weights import LiftedWeights
from fractune_workers.children.importing.passes import extract, prepare
from tests.support.onnx_models import TARGET, imported, onnx_model, run_imported, run_reference
from tests.support.unoptimized import machine_of

Array = npt.NDArray[Any]
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)
WEIGHT = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)


def graph(nodes: list[onnx.NodeProto], output: str, weights: dict[str, Array] | None = None) -> onnx.GraphProto:
    made = helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])
    made.initializer.extend(numpy_helper.from_array(value, name) for name, value in (weights or {}).items())
    return made


def product(result: str, after: str, weights: dict[str, Array] | None = None) -> onnx.GraphProto:
    """x @ w, then an element-wise operator."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], [f"{result}_m"]),
        helper.make_node(after, [f"{result}_m"], [result]),
    ]
    return graph(nodes, result, weights)


def choice(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.ModelProto:
    """Takes `then` where the sum of x is above 0; the result is negated."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["yes"]),
        helper.make_node("If", ["yes"], ["chosen"], name="choice", then_branch=then, else_branch=otherwise),
        helper.make_node("Neg", ["chosen"], ["y"]),
    ]
    return onnx_model(nodes, {"x": X}, {"zero": np.zeros((), np.float32), "w": WEIGHT})


def check(model: onnx.ModelProto) -> None:
    for x in (X + 0.5, X - 0.5):
        for ours, theirs in zip(run_imported(model, {"x": x}), run_reference(model, {"x": x}), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_taken_branch_computes_the_result() -> None:
    check(choice(product("a", "Relu"), product("b", "Sigmoid")))


def test_branches_within_branches_and_values_from_around() -> None:
    inner = helper.make_node("If", ["yes"], ["c"], then_branch=product("d", "Tanh"), else_branch=graph([], "x"))
    check(choice(graph([inner, helper.make_node("Add", ["c", "sum"], ["e"])], "e"), graph([], "x")))


def test_a_branch_of_constants() -> None:
    check(choice(graph([], "k", {"k": X}), product("b", "Relu")))


def test_each_branch_is_fused_and_its_operators_are_extracted() -> None:
    mod = prepare(imported(choice(product("a", "Relu"), product("b", "Neg"))), TARGET)
    names = [operator.name for operator in extract(mod, TARGET)]
    assert any("matmul" in name and "relu" in name for name in names)
    assert any("matmul" in name and "negative" in name for name in names)
    called = [each for each in mod.functions.values() if isinstance(each, relax.Function)]
    conditions = [b.value for f in called for block in f.body.blocks for b in block.bindings]
    assert sum(isinstance(value, relax.If) for value in conditions) == 1


def test_weights_of_branches_are_kept_once() -> None:
    """Both branches read one weight, and a second variant the same ones."""
    mod = prepare(imported(choice(product("a", "Relu"), product("b", "Sigmoid"))), TARGET)
    weights = LiftedWeights()
    first, second = weights.lifted(mod), weights.lifted(mod)
    assert [tensor.numpy().size for tensor in weights.tensors] == [WEIGHT.size]
    assert first.weights == second.weights
    machine = machine_of(first.module, TARGET)
    for x in (X + 0.5, X - 0.5):
        given = [tvm.runtime.tensor(x), *(weights.tensors[at] for at in first.weights)]
        (expected,) = run_reference(choice(product("a", "Relu"), product("b", "Sigmoid")), {"x": x})
        np.testing.assert_allclose(machine["main"](*given).numpy(), expected, atol=1e-5)


def test_branches_with_other_results_are_refused() -> None:
    half = graph([helper.make_node("ReduceMax", ["x"], ["h"], keepdims=0)], "h")
    with pytest.raises(
        BadModel, match=r"node 'choice' \(If\): its branches make .* must be equal; if an input decides"
    ):
        imported(choice(product("a", "Relu"), half))


def test_a_refusal_inside_a_branch_names_both_nodes() -> None:
    odd = graph([helper.make_node("Odd", ["x"], ["o"], name="strange", domain="com.example")], "o")
    with pytest.raises(
        BadModel,
        match=r"a branch of node 'choice' \(If\): .* node 'strange' \(com\.example\.Odd\): no kernel",
    ):
        imported(choice(product("a", "Relu"), odd))


@pytest.mark.parametrize(
    "condition", [np.array(1, np.float32), np.array([False, True]), np.array(1, np.int64)], ids=str
)
def test_a_condition_that_is_not_one_bool_is_refused(condition: Array) -> None:
    node = helper.make_node(
        "If", ["c"], ["y"], name="choice", then_branch=product("a", "Relu"), else_branch=product("b", "Neg")
    )
    with pytest.raises(BadModel, match=r"node 'choice' \(If\): its condition has the type .*; it must be one bool"):
        imported(onnx_model([node], {"x": X, "c": condition}, {"w": WEIGHT}))


def test_a_missing_branch_is_refused() -> None:
    node = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=product("a", "Relu"))
    with pytest.raises(BadModel, match=r"node 'choice' \(If\): it has no graph 'else_branch'; export"):
        imported(onnx_model([node], {"x": X, "c": np.ones((), np.bool_)}, {"w": WEIGHT}))


def test_a_branch_that_reads_an_unknown_name_is_refused() -> None:
    odd = graph([helper.make_node("Relu", ["missing"], ["o"])], "o")
    with pytest.raises(BadModel, match=r"node 'choice' \(If\): it reads 'missing', which no node makes"):
        imported(choice(product("a", "Relu"), odd))
