"""An operator that no kernel computes is told with the node of the file that it comes from."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from fractune_core.errors import BadModel
from fractune_core.operators import refused_node
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.rewriting.expressions import with_origins
from tests.support.onnx_models import TARGET, imported, onnx_model

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
