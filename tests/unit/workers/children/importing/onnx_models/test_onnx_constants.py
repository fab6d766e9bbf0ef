"""Inputs of an ONNX model that become constants: what follows from them is folded."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tvm import relax

from fractune_core.errors import BadModel
from fractune_workers.children.compiling.signature import names_in_file
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.onnx_models.onnx_model import load_onnx

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
    assert names_in_file(rated().SerializeToString(), {"sr": "16000"}) == (["x"], ["y"])


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
