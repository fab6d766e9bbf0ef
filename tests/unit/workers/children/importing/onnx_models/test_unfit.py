"""Nodes without a kernel are refused in words of their model: the node, the reason and a remedy."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

from fractune_core.errors import BadModel
from fractune_core.operators import refused_node
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.model_file import load_fixed
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.rewriting.expressions import with_origins
from tests.support.onnx_models import TARGET, imported, onnx_model, run_imported

X = np.ones((2, 3), np.float32)
SHAPE = np.array([2, 2, 3])


def refusal(model: onnx.ModelProto) -> str:
    data = model.SerializeToString()
    with pytest.raises(BadModel) as caught:
        prepare(load_fixed(data, {}, Limits(len(data))), TARGET)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def one(operator: str, inputs: dict[str, Any], weights: dict[str, Any] | None = None, **attributes: Any) -> str:
    node = helper.make_node(operator, [*inputs, *(weights or {})], ["y"], "it", **attributes)
    return refusal(onnx_model([node], inputs, weights))


def test_types_that_onnx_does_not_take() -> None:
    assert one("Relu", {"x": X > 0}) == (
        "opset 21: cannot import node 'it' (Relu): 'x' has elements of type BOOL, which ONNX's operator does not take; "
        "cast it before"
    )


def test_shapes_that_do_not_fit() -> None:
    assert one("Reshape", {"x": X}, {"s": np.array([4, 2])}) == (
        "opset 21: cannot import node 'it' (Reshape): no kernel takes 'x' float32 [2, 3], 's' int64 = [4, 2], "
        "allowzero=0; export it with other types, shapes or attributes"
    ).replace(", allowzero=0", "")


def test_attributes_that_onnx_does_not_know() -> None:
    message = one("Gemm", {"x": X, "w": X}, {"c": np.ones(7, np.float32)}, strange=1)
    assert "node 'it' (Gemm): it is not valid ONNX (Unrecognized attribute: strange for operator Gemm" in message


def test_an_attribute_of_another_type() -> None:
    image = np.ones((1, 1, 8, 8), np.float32)
    message = one("AveragePool", {"x": image}, kernel_shape=[2, 2], dilations=0)
    assert message.endswith("its attribute 'dilations' is of another type than ONNX's; export the model again")


@pytest.mark.parametrize("operator", ["Expand", "ConstantOfShape"])
def test_a_computed_size(operator: str) -> None:
    message = one(operator, {"s": SHAPE} if operator == "ConstantOfShape" else {"x": X, "s": SHAPE[1:]})
    assert message.startswith(f"opset 21: cannot import node 'it' ({operator}): ")
    assert message.endswith(("export with fixed shapes", "export it with fixed shapes"))


def test_an_output_that_is_not_computed() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", "places"], "it", kernel_shape=[2, 2])
    model = onnx_model([node], {"x": np.ones((1, 1, 4, 4), np.float32)}, outputs=["y", "places"])
    assert refusal(model).endswith("its output 'places' is not computed; export it without this output")


def test_an_output_that_no_node_makes() -> None:
    model = onnx_model([helper.make_node("Relu", ["x"], ["y"])], {"x": X}, outputs=["z"])
    assert "no node makes its output 'z'; export the model again" in refusal(model)


def test_an_input_without_a_type() -> None:
    model = onnx_model([helper.make_node("Relu", ["x"], ["y"])], {"x": X})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
    assert refusal(model) == "input 'x' has elements of no type that ONNX defines; export the model again"


def test_an_empty_tensor_that_a_kernel_would_read() -> None:
    """A product over no number would leave its result as the memory was."""
    nodes = [
        helper.make_node("Slice", ["x", "at", "at", "axis"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["y"], "it"),
    ]
    weights = {"at": np.array([1]), "axis": np.array([1]), "w": np.zeros((0, 5), np.float32)}
    assert refusal(onnx_model(nodes, {"x": X}, weights)) == (
        "opset 21: cannot import node 'it' (MatMul): its input 'e' is empty, and no kernel computes with it; "
        "export without it"
    )


def test_an_empty_tensor_that_is_joined_to_another() -> None:
    nodes = [
        helper.make_node("Slice", ["x", "at", "at"], ["e"]),
        helper.make_node("Concat", ["e", "x"], ["y"], axis=0),
    ]
    model = onnx_model(nodes, {"x": X}, {"at": np.array([1])})
    np.testing.assert_array_equal(run_imported(model, {"x": X})[0], X)


def test_an_input_that_is_read_twice_is_named_once() -> None:
    message = refusal(onnx_model([helper.make_node("MatMul", ["x", "x"], ["y"], "it")], {"x": X}))
    assert "no kernel takes 'x' float32 [2, 3]; export it" in message


def test_an_attribute_of_another_type_in_an_old_opset() -> None:
    node = helper.make_node("Pad", ["x"], ["y"], mode="edge")
    model = onnx_model([node], {"x": np.ones((1, 1, 4, 4), np.float32)}, opset=6)
    model.graph.node[0].attribute.append(
        onnx.AttributeProto(name="pads", type=onnx.AttributeProto.STRING, ints=[0] * 8)
    )
    assert "opset 6: cannot import node with output 'y' (Pad): its attributes and inputs do not fit" in refusal(model)


def test_a_size_that_follows_from_an_input_is_no_obstacle_to_the_operators_list(tmp_path: Path) -> None:
    from fractune_workers.children.compiling.child import ingest

    nodes = [
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("Constant", [], ["one"], value_int=1),
        helper.make_node("Cast", ["x"], ["end"], to=TensorProto.INT64),
        helper.make_node("Range", ["zero", "end", "one"], ["places"]),
        helper.make_node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Cos", ["numbers"], ["y"]),
    ]
    path = tmp_path / "range.onnx"
    path.write_bytes(onnx_model(nodes, {"x": np.array(3, np.int32)}).SerializeToString())
    assert ingest(str(path), {}, "llvm -mcpu=x86-64-v3", "")["operators"]


RELU, QUOTIENT = (f"opset 17: cannot import node '{name}' ({kind}): " for name, kind in (("a", "Relu"), ("b", "Div")))


def divided_by_zero() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([3], "int32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.nn.relu(x))
            quotient = builder.emit(relax.op.floor_divide(first, relax.const(0, "int32")))
            last = builder.emit_output(relax.op.add(quotient, quotient))
        builder.emit_func_output(last)
    return with_origins(builder.get(), [(first, RELU), (last, QUOTIENT)])


def test_what_cannot_be_lowered_is_told_with_its_node() -> None:
    with pytest.raises(BadModel) as caught:
        prepare(divided_by_zero(), TARGET)
    assert str(caught.value).startswith(f"{QUOTIENT}no kernel computes floor_divide of int32 [3]; export it with")
    refused = refused_node(str(caught.value))
    assert refused is not None
    assert refused.is_node("b", "", "Div")


def test_each_operator_knows_its_node() -> None:
    """Those of a decomposition are of the node that was decomposed."""
    x = np.zeros((2, 3), np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "first"),
        helper.make_node("Celu", ["r"], ["c"], "second"),
        helper.make_node("Exp", ["c"], ["y"]),
    ]
    mod = imported(onnx_model(nodes, {"x": x}))
    texts = [str(text) for text in mod.attrs["fractune.origins"]]
    named = [refused_node(text + "why") for text in texts]
    assert len(texts) == sum(len(block.bindings) for block in mod["main"].body.blocks)
    assert list(dict.fromkeys(each and (each.name, each.output) for each in named)) == [
        ("first", ""),
        ("second", ""),
        ("", "y"),
    ]
    assert not prepare(mod, TARGET).attrs or "fractune.origins" not in prepare(mod, TARGET).attrs
