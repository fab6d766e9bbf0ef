"""Simplification: the same numbers, said shortly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax

from fractune_workers.children.rewriting.simplifying.simplify import simplify
from tests.support.onnx_models import onnx_model, run_imported, run_reference
from tests.unit.workers.children.layouts.networks import Network, calls, inputs_of, network, outputs

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
op = relax.op


def check(mod: tvm.IRModule) -> list[str]:
    given, simple = inputs_of(mod), simplify(mod)
    np.testing.assert_allclose(outputs(simple, TARGET, given), outputs(mod, TARGET, given), rtol=1e-4, atol=1e-4)
    return calls(simple)


def batch_norm(net: Network, data: Any, channels: int) -> Any:
    statistics = [net.positive(channels), net.weight(channels), net.weight(channels), net.positive(channels)]
    normalized = net.emit(op.nn.batch_norm(data, *statistics, axis=1, training=False))
    return net.emit(relax.TupleGetItem(normalized, 0))


@pytest.mark.parametrize("bias", [False, True])
def test_a_batch_norm_goes_into_the_convolution_before_it(bias: bool) -> None:  # noqa: FBT001
    def body(net: Network, x: Any) -> Any:
        value = net.conv(x, 6)
        return batch_norm(net, net.emit(op.add(value, net.weight(1, 6, 1, 1))) if bias else value, 6)

    names = check(network([(1, 4, 6, 6)], body))
    assert names == ["relax.nn.conv2d", *["relax.add"] * (1 + bias)]


def test_a_convolution_that_something_else_reads_keeps_its_weight() -> None:
    def body(net: Network, x: Any) -> Any:
        value = net.conv(x, 6)
        return net.emit(op.add(value, batch_norm(net, value, 6)))

    assert check(network([(1, 4, 6, 6)], body)).count("relax.nn.conv2d") == 1


def test_a_batch_norm_alone_is_a_scale_and_a_shift() -> None:
    assert check(network([(1, 4, 6, 6)], lambda net, x: batch_norm(net, x, 4))) == ["relax.multiply", "relax.add"]


def test_shapes_of_constants_are_changed_beforehand() -> None:
    def body(net: Network, x: Any) -> Any:
        weight = net.emit(op.permute_dims(net.weight(5, 3)))
        return net.emit(op.add(net.emit(op.matmul(x, weight)), net.emit(op.reshape(net.weight(5), [1, 5]))))

    assert check(network([(2, 3)], body)) == ["relax.matmul", "relax.add"]


def _node(operator: str, *inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, list(inputs), [output], **attributes)


@pytest.mark.parametrize(
    ("nodes", "shape", "weights"),
    [
        (
            [_node("MatMul", "x", "w", output="a"), _node("Reshape", "a", "s", output="b"), _node("Add", "b", "v")],
            (4, 6),
            {"w": (6, 8), "v": (8,)},
        ),
        ([_node("Conv", "x", "w", output="a"), _node("Mul", "a", "v")], (1, 3, 9), {"w": (4, 3, 3), "v": (4, 1)}),
        ([_node("ConvTranspose", "x", "w")], (1, 3, 5, 5), {"w": (3, 4, 3, 3)}),
        ([_node("ConvTranspose", "x", "w", strides=[2])], (1, 3, 5), {"w": (3, 4, 3)}),
    ],
    ids=["rows", "line", "turned", "transposed line"],
)
def test_weights_of_64_bits_stay_so(
    nodes: list[onnx.NodeProto], shape: tuple[int, ...], weights: dict[str, tuple[int, ...]]
) -> None:
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {name: rng.standard_normal(each) for name, each in weights.items()}
    feed = {"x": rng.standard_normal(shape)}
    model = onnx_model(nodes, feed, {**made, "s": np.array([2, 2, 8])}, opset=17)
    (found,), (right,) = run_imported(model, feed), run_reference(model, feed)
    np.testing.assert_allclose(found, right, atol=1e-12)
