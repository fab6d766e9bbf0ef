"""Normalisations and GELU that were written out become one operator, and only these."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.rewriting.simplify import simplify
from tests.unit.workers.children.layouts.networks import Network, calls, inputs_of, network, outputs

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
op = relax.op


def const(number: float) -> Any:
    return relax.const(number, "float32")


def statistics(net: Network, x: Any, axis: int = -1, power: float = 2.0) -> tuple[Any, Any]:
    """The centred value, and variance plus epsilon."""
    centred = net.emit(op.subtract(x, net.emit(op.mean(x, [axis], keepdims=True))))
    squares = net.emit(op.power(centred, const(power)))
    variance = net.emit(op.mean(squares, [axis], keepdims=True))
    return centred, net.emit(op.add(variance, const(1e-3)))


def quotient(net: Network, x: Any) -> Any:
    centred, variance = statistics(net, x)
    scaled = net.emit(op.multiply(net.emit(op.divide(centred, net.emit(op.sqrt(variance)))), net.weight(6)))
    return net.emit(op.multiply(net.emit(op.add(net.weight(1, 1, 6), scaled)), net.weight(6)))


def product(net: Network, x: Any) -> Any:
    centred, variance = statistics(net, x)
    return net.emit(op.multiply(net.emit(op.rsqrt(variance)), centred))


def inverse(net: Network, x: Any) -> Any:
    centred, variance = statistics(net, x)
    factor = net.emit(op.divide(const(1.0), net.emit(op.sqrt(variance))))
    return net.emit(op.multiply(centred, factor))


def mean_square(net: Network, x: Any, square: Any = None) -> Any:
    """Plus epsilon."""
    squares = net.emit(op.multiply(x, x)) if square is None else square
    return net.emit(op.add(const(1e-5), net.emit(op.mean(squares, [-1], keepdims=True))))


def root_quotient(net: Network, x: Any) -> Any:
    squares = net.emit(op.power(x, const(2.0)))
    normed = net.emit(op.divide(x, net.emit(op.sqrt(mean_square(net, x, squares)))))
    return net.emit(op.multiply(net.weight(6), normed))


def root_product(net: Network, x: Any) -> Any:
    normed = net.emit(op.multiply(net.emit(op.rsqrt(mean_square(net, x))), x))
    return net.emit(op.multiply(normed, net.weight(1, 1, 6)))


def root_inverse(net: Network, x: Any) -> Any:
    factor = net.emit(op.divide(const(1.0), net.emit(op.sqrt(mean_square(net, x)))))
    return net.emit(op.multiply(x, factor))


def other_squares(net: Network, x: Any) -> Any:
    other = net.emit(op.multiply(x, const(3.0)))
    squares = net.emit(op.multiply(other, other))
    return net.emit(op.divide(x, net.emit(op.sqrt(mean_square(net, x, squares)))))


def other_axis(net: Network, x: Any) -> Any:
    centred, variance = statistics(net, x, axis=1)
    return net.emit(op.divide(centred, net.emit(op.sqrt(variance))))


def other_power(net: Network, x: Any) -> Any:
    centred, variance = statistics(net, x, power=4.0)
    return net.emit(op.divide(centred, net.emit(op.sqrt(variance))))


def error(net: Network, x: Any, root: float = 2.0**0.5) -> Any:
    return net.emit(op.add(net.emit(op.erf(net.emit(op.divide(x, const(root))))), const(1.0)))


def gelu(net: Network, x: Any) -> Any:
    return net.emit(op.multiply(net.emit(op.multiply(x, error(net, x))), const(0.5)))


def gelu_of_halves(net: Network, x: Any) -> Any:
    return net.emit(op.multiply(x, net.emit(op.multiply(const(0.5), error(net, x)))))


def other_root(net: Network, x: Any) -> Any:
    return net.emit(op.multiply(net.emit(op.multiply(x, error(net, x, 3.0))), const(0.5)))


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (quotient, ["nn.layer_norm"]),
        (product, ["nn.layer_norm"]),
        (inverse, ["nn.layer_norm"]),
        (root_quotient, ["nn.rms_norm"]),
        (root_product, ["nn.rms_norm"]),
        (root_inverse, ["nn.rms_norm"]),
        (gelu, ["nn.gelu"]),
        (gelu_of_halves, ["nn.gelu"]),
    ],
)
def test_they_are_one_operator(body: Callable[..., Any], names: list[str]) -> None:
    mod = network([(2, 3, 6)], body)
    given, short = inputs_of(mod), simplify(mod)
    assert calls(short) == [f"relax.{name}" for name in names]
    np.testing.assert_allclose(outputs(short, TARGET, given), outputs(mod, TARGET, given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("body", [other_axis, other_power, other_root, other_squares])
def test_what_only_looks_like_them_stays(body: Callable[..., Any]) -> None:
    mod = network([(2, 3, 6)], body)
    assert calls(simplify(mod)) == calls(mod)


def test_a_constant_with_more_axes_keeps_them() -> None:
    def body(net: Network, x: Any) -> Any:
        return net.emit(op.multiply(net.emit(op.multiply(x, error(net, x))), relax.const(half)))

    half = np.full((1, 1, 1, 1), 0.5, "float32")
    mod = network([(3, 8)], body)
    given, short = inputs_of(mod), simplify(mod)
    made = outputs(short, TARGET, given)
    assert made.shape == (1, 1, 3, 8)
    np.testing.assert_allclose(made, outputs(mod, TARGET, given), rtol=1e-4, atol=1e-5)
