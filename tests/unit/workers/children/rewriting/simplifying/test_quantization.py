"""Quantized values as float32: exactly what ONNX says, in few operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.rewriting.simplifying.simplify import simplify
from tests.unit.workers.children.layouts.networks import Network, calls, network, outputs

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
op = relax.op


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
