"""Simplification: the same numbers, said shortly; quantized values as float32, and reshapes that meet and cancel."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax

from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.rewriting.simplify import simplify
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


def const(numbers: Any, dtype: str = "float32") -> Any:
    return relax.const(np.asarray(numbers, dtype))


def rounded(net: Network, value: Any, scale: float, zero: int, dtype: str = "uint8") -> Any:
    """Quantized and dequantized again."""
    parameters = const(scale), const(zero, dtype)
    return net.emit(op.dequantize(net.emit(op.quantize(value, *parameters, out_dtype=dtype)), *parameters))


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 3), ("uint8", 0), ("int8", -7), ("int16", 0)])
def test_what_is_quantized_and_dequantized_becomes_element_wise(dtype: str, zero: int) -> None:
    """Ties round to even, and numbers beyond the limits are clipped."""
    mod = network([(40,)], lambda net, x: rounded(net, x, 0.5, zero, dtype))
    x = np.linspace(-200, 200, 40, dtype="float32")
    x[:4] = 0.25, 0.75, -0.25, -1.25
    limits = np.iinfo(dtype)
    expected = (np.clip(np.round(x / np.float32(0.5)) + zero, limits.min, limits.max) - zero) * np.float32(0.5)
    short = simplify(mod)
    assert calls(short) == [f"relax.{name}" for name in ("divide", "round", "minimum", "maximum", "multiply")]
    np.testing.assert_array_equal(outputs(short, TARGET, [x]), expected)


def test_a_quantized_constant_becomes_float32() -> None:
    numbers = np.arange(-6, 6, dtype="int8").reshape(3, 4)
    scales, zeros = np.array([0.5, 0.25, 2, 1], "float32"), np.array([0, 1, -2, 3], "int8")

    def body(net: Network, x: Any) -> Any:
        weight = net.emit(op.dequantize(relax.const(numbers), relax.const(scales), relax.const(zeros), axis=1))
        one = net.emit(op.dequantize(relax.const(numbers), const(0.5), const(2, "int8"), axis=0))
        return net.emit(op.add(x, net.emit(op.add(weight, one))))

    mod = simplify(network([(3, 4)], body))
    assert calls(mod) == ["relax.add"] * 2
    expected = (numbers - zeros.astype("float32")) * scales + (numbers - np.float32(2)) * np.float32(0.5)
    np.testing.assert_array_equal(outputs(mod, TARGET, [np.zeros((3, 4), "float32")]), expected)


def test_a_value_that_is_dequantized_by_another_scale_stays() -> None:
    def body(net: Network, x: Any) -> Any:
        counted = net.emit(op.quantize(x, const(0.5), const(0, "uint8"), out_dtype="uint8"))
        return net.emit(op.dequantize(counted, const(0.25), const(0, "uint8")))

    assert calls(simplify(network([(4,)], body))) == ["relax.quantize", "relax.dequantize"]


def test_layers_with_other_scales_share_an_operator() -> None:
    def body(net: Network, x: Any) -> Any:
        for scale, zero in ((0.5, 1), (0.25, 7)):
            x = rounded(net, net.emit(op.matmul(x, net.weight(16, 16))), scale, zero)
        return x

    operators = extract(prepare(network([(8, 16)], body), TARGET), TARGET)
    (product,) = [operator for operator in operators if "matmul" in operator.name]
    assert product.weight == 2


def dense(net: Network, x: Any, columns: int) -> Any:
    """As an optimizer of ONNX files writes a product with a bias of (1, tokens, width)."""
    _, tokens, width = (int(dim) for dim in x.ty.shape)
    flat = net.emit(op.matmul(net.emit(op.reshape(x, [tokens, width])), net.weight(width, columns)))
    return net.emit(op.reshape(net.emit(op.add(flat, net.weight(columns))), [1, tokens, columns]))


def residual(net: Network, x: Any) -> Any:
    value = net.emit(op.add(x, dense(net, net.emit(op.nn.relu(dense(net, x, 12))), 6)))
    return net.emit(op.nn.layer_norm(value, net.weight(6), net.weight(6), axes=[-1]))


def number(net: Network, x: Any) -> Any:
    return net.emit(op.multiply(net.emit(op.clip(dense(net, x, 4), -1.0, 1.0)), net.weight(1, 1, 1)))


def product(net: Network, x: Any) -> Any:
    return net.emit(op.matmul(dense(net, x, 4), net.weight(4, 5)))


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (residual, ["reshape", "matmul", "add", "nn.relu", "matmul", "add", "add", "nn.layer_norm", "reshape"]),
        (number, ["reshape", "matmul", "add", "clip", "multiply", "reshape"]),
        (product, ["reshape", "matmul", "add", "matmul", "reshape"]),
    ],
)
def test_reshapes_cancel(body: Callable[..., Any], names: list[str]) -> None:
    mod = network([(1, 5, 6)], body)
    given, short = inputs_of(mod), simplify(mod)
    found = calls(short)
    assert [name for name in found if name != "relax.reshape"] == [
        f"relax.{name}" for name in names if name != "reshape"
    ]
    assert found[-1] == "relax.reshape"
    assert found.count("relax.reshape") <= names.count("reshape") + (body is residual)
    np.testing.assert_allclose(outputs(short, TARGET, given), outputs(mod, TARGET, given), rtol=1e-4, atol=1e-5)


def test_an_operand_whose_rows_differ_keeps_its_shape() -> None:
    def body(net: Network, x: Any) -> Any:
        return net.emit(op.add(dense(net, x, 4), net.weight(1, 5, 4)))

    mod = network([(1, 5, 6)], body)
    assert calls(simplify(mod))[-2:] == ["relax.reshape", "relax.add"]
