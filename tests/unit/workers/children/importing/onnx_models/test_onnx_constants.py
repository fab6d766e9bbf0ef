"""Inputs of an ONNX model that become constants: what follows from them is folded."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from fractune_core.errors import BadModel
from fractune_core.operators import refused_node
from fractune_workers.children.compiling.signature import of_file
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.model_file import load_model
from fractune_workers.children.importing.onnx_models.onnx_fold import Folding
from fractune_workers.children.importing.onnx_models.onnx_model import load_onnx
from tests.support.expanding_models import after, model, node
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported

X = np.ones((2, 3), np.float32)


def rated(kind: int = TensorProto.INT64) -> onnx.ModelProto:
    """An `If` that asks for a rate of 16,000."""
    branches = [
        helper.make_graph(
            [helper.make_node(operator, ["x"], [operator])],
            operator,
            [],
            [helper.make_tensor_value_info(operator, TensorProto.FLOAT, [2, 3])],
        )
        for operator in ("Relu", "Neg")
    ]
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["yes"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
        helper.make_tensor_value_info("sr", kind, []),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])])
    graph.initializer.append(helper.make_tensor("rate", kind, [], [16000]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def load(model: onnx.ModelProto, inputs: dict[str, list[int]]) -> relax.Function:
    data = model.SerializeToString()
    return load_onnx(data, inputs, Limits(len(data)))["main"]


@pytest.mark.parametrize(("rate", "operator"), [(16000, "relax.nn.relu"), (8000, "relax.negative")])
def test_the_branch_of_a_constant_rate_alone_is_left(rate: int, operator: str) -> None:
    main = load(rated(), {f"sr=const:{rate}": []})
    assert [param.name for param in main.params] == ["x"]
    assert [b.value.op.name for block in main.body.blocks for b in block.bindings if hasattr(b.value, "op")] == [
        operator
    ]


def masked(ids: list[str | int], mask: list[str | int]) -> onnx.ModelProto:
    """`y = ids * mask`, with these dimensions."""
    shapes = {"ids": ids, "mask": mask, "y": ids}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, each) for name, each in shapes.items()]
    graph = helper.make_graph([helper.make_node("Mul", ["ids", "mask"], ["y"])], "g", ends[:2], ends[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("ids", "mask", "inputs"),
    [
        (["batch", "length"], ["?", "?"], {"ids": [2, 3], "mask": [1, 3]}),
        (["batch", "length"], ["batch", "length"], {"ids": [2, 3]}),
        (["batch", "length"], ["batch", "length"], {"mask": [2, 3]}),
    ],
    ids=["its own", "by names of another", "for another"],
)
def test_a_constant_takes_its_open_dimensions_from_shapes(
    ids: list[str | int], mask: list[str | int], inputs: dict[str, list[int]]
) -> None:
    main = load(masked(ids, mask), {**inputs, "mask=const:2": []})
    (param,) = main.params
    assert param.name == "ids"
    assert [int(size) for size in param.ty.shape] == [int(size) for size in main.ret_ty.shape] == [2, 3]


@pytest.mark.parametrize(
    ("mask", "inputs", "options"),
    [
        (["?", "?"], {"ids": [1, 32]}, "--input mask=DIM,DIM --input mask=const:1"),
        ([1, "?"], {"ids": [1, 32]}, "--input mask=1,DIM --input mask=const:1"),
        (["?", 32], {}, "--input ids=DIM,DIM --input mask=DIM,32 --input mask=const:1"),
        (["batch", "length"], {}, "--input ids=DIM,DIM"),
    ],
)
def test_open_dimensions_of_a_constant_are_no_ones(
    mask: list[str | int], inputs: dict[str, list[int]], options: str
) -> None:
    with pytest.raises(BadModel, match=r"has open dimensions: the inputs are ids \[.*; fix them with ") as refused:
        load(masked(["batch", "length"], mask), {**inputs, "mask=const:1": []})
    assert str(refused.value).endswith(f"fix them with {options}")


def test_several_numbers_are_the_size_of_one_open_dimension() -> None:
    main = load(masked([2, 3], ["?"]), {"mask=const:1,2,3": []})
    assert [int(size) for size in main.ret_ty.shape] == [2, 3]


def test_the_names_of_inputs_lack_the_constant() -> None:
    assert of_file(rated().SerializeToString(), {"sr": "16000"})[0] == (["x"], ["y"])


@pytest.mark.parametrize(
    ("kind", "what"), [(99, "99, which ONNX does not define"), (TensorProto.STRING, "object")], ids=["unknown", "text"]
)
def test_only_an_input_of_numbers_becomes_a_constant(kind: int, what: str) -> None:
    model = rated()
    model.graph.input[1].type.tensor_type.elem_type = kind
    with pytest.raises(BadModel, match=f"input 'sr' has elements of type {what}, and a constant has numbers; leave"):
        load(model, {"sr=const:16000": []})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rs=const:1", r"no input is named 'rs'; the inputs are x \[2, 3\], sr \[\]"),
        ("sr=const:fast", "input 'sr': 'fast' is not a number of type int64"),
        ("sr=const:1,2", r"input 'sr' has the shape \[\], and 2 numbers are given; give 1 or 1"),
    ],
)
def test_a_wrong_constant_is_named(text: str, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        load(rated(), {text: []})


Array = npt.NDArray[Any]
ROW = {"x": np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)}


def calling(own: int, version: int, operator: str = "Softmax", **attributes: Any) -> onnx.ModelProto:
    """A model of opset `version` that calls a function of opset `own`, which calls another one."""
    inner = [helper.make_node(operator, ["a"], ["b"], **attributes)]
    outer = [helper.make_node("Inner", ["a"], ["s"], domain="local"), helper.make_node("Relu", ["s"], ["b"])]
    model = onnx_model([helper.make_node("Outer", ["x"], ["y"], "call", domain="local")], ROW, opset=version)
    model.opset_import.append(helper.make_opsetid("local", 1))
    opsets = [helper.make_opsetid("", own), helper.make_opsetid("local", 1)]
    for name, nodes in (("Outer", outer), ("Inner", inner)):
        model.functions.append(helper.make_function("local", name, ["a"], ["b"], nodes, opsets))
    return model


@pytest.mark.parametrize(("own", "version"), [(17, 21), (21, 13), (11, 12)])
def test_a_function_of_another_opset(own: int, version: int) -> None:
    model = calling(own, version, axis=1)
    np.testing.assert_allclose(run_imported(model, ROW)[0], run_by_onnxruntime(model, ROW)[0], rtol=1e-5)


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
    expected = ROW["x"].copy()
    expected[[0, 2], [1, 3]] += [2, 5]
    np.testing.assert_array_equal(run_imported(onnx_model(nodes, ROW), ROW)[0], expected)


def test_a_sparse_constant_is_counted_before_it_is_made() -> None:
    values, places = numpy_helper.from_array(np.ones(1, np.float32)), numpy_helper.from_array(np.zeros(1, np.int64))
    sparse = onnx.SparseTensorProto(values=values, indices=places, dims=[2**20, 2**20])
    node = helper.make_node("Constant", [], ["c"], sparse_value=sparse)
    with pytest.raises(BadModel, match="is the limit"):
        imported(onnx_model([node, helper.make_node("Add", ["x", "c"], ["y"])], ROW))


@pytest.mark.parametrize("name", ["", "mine"])
def test_a_refusal_within_a_decomposition_names_the_files_own_node(name: str) -> None:
    """`Bernoulli` becomes a random number, which is refused, and a comparison."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Bernoulli", ["r"], ["y"], name)]
    with pytest.raises(BadModel) as caught:
        imported(onnx_model(nodes, ROW))
    refused = refused_node(str(caught.value))
    assert refused is not None
    assert refused.is_node(name, "y", "Bernoulli")
    assert not refused.is_node("", "r", "Relu")


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_a_shape_computed_from_a_shape_is_known(op: str, tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["n"]),
        node(op, ["n", "two"], ["m"]),
        node("ConstantOfShape", ["m"], ["c"]),
        node("ReduceSum", ["c"], ["s"]),
    ]
    (tmp_path / "m.onnx").write_bytes(model(after(nodes, "s"), {"two": np.array([2])}))
    load_model(tmp_path / "m.onnx")


def branch(shape: list[int]) -> onnx.GraphProto:
    """A branch of an `If` that computes a tensor of that shape."""
    nodes = [node("Expand", ["t", f"n{shape}"], ["out"])]
    shape_of = numpy_helper.from_array(np.array(shape), f"n{shape}")
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [output], [shape_of])


@pytest.mark.parametrize(("other", "left"), [([2, 3], []), ([3, 2], ["n"])])
def test_a_shape_is_known_where_both_branches_agree(other: list[int], left: list[str]) -> None:
    nodes = [
        node("ReduceSum", ["x"], ["t"], keepdims=0),
        node("Cast", ["t"], ["yes"], to=TensorProto.BOOL),
        node("If", ["yes"], ["c"], then_branch=branch([2, 3]), else_branch=branch(other)),
        node("Shape", ["c"], ["n"]),
        node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]
    read = onnx.load_from_string(model(nodes))
    Folding(read, Limits(1000)).run()
    assert [each.output[0] for each in read.graph.node if each.op_type == "Shape"] == left
