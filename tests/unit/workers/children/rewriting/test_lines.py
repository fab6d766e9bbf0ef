"""Convolutions over lines as convolutions over images: the same numbers, no changes of shape between them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.rewriting.simplify import simplify
from tests.unit.workers.children.layouts.networks import Network, calls, inputs_of, network, outputs

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
op = relax.op


def conv(net: Network, x: Any, channels: int, **options: Any) -> Any:
    weight = net.weight(channels, int(x.ty.shape[1]) // options.get("groups", 1), 3)
    return net.emit(op.nn.conv1d(x, weight, **options))


def alone(net: Network, x: Any) -> Any:
    return conv(net, x, 6, strides=2, padding=(1, 2))


def dilated(net: Network, x: Any) -> Any:
    return conv(net, x, 8, dilation=2, padding=1, groups=4)


def with_operators_between(net: Network, x: Any) -> Any:
    value = net.emit(op.add(conv(net, x, 8, padding=1), net.weight(1, 8, 1)))
    value = net.emit(op.clip(net.emit(op.multiply(value, relax.const(2.0))), -1.0, 5.0))
    return conv(net, value, 4)


def with_a_slice_between(net: Network, x: Any) -> Any:
    parts = conv(net, x, 8)
    first, second = (net.emit(op.strided_slice(parts, [1], [begin], [begin + 4])) for begin in (0, 4))
    return conv(net, net.emit(op.add(first, second)), 4)


def with_circular_padding(net: Network, x: Any) -> Any:
    value = conv(net, x, 8)
    first, last = (net.emit(op.strided_slice(value, [2], [begin], [begin + 3])) for begin in (0, 15))
    return conv(net, net.emit(op.concat([last, value, first], -1)), 4, dilation=3)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (alone, ["expand_dims", "nn.conv2d", "squeeze"]),
        (dilated, ["expand_dims", "nn.conv2d", "squeeze"]),
        (with_operators_between, ["expand_dims", "nn.conv2d", "add", "multiply", "clip", "nn.conv2d", "squeeze"]),
        (
            with_a_slice_between,
            ["expand_dims", "nn.conv2d", "strided_slice", "strided_slice", "add", "nn.conv2d", "squeeze"],
        ),
        (
            with_circular_padding,
            ["expand_dims", "nn.conv2d", "strided_slice", "strided_slice", "concat", "nn.conv2d", "squeeze"],
        ),
    ],
)
def test_they_are_over_images(body: Callable[..., Any], names: list[str]) -> None:
    mod = network([(1, 4, 20)], body)
    given, short = inputs_of(mod), simplify(mod)
    assert calls(short) == [f"relax.{name}" for name in names]
    np.testing.assert_allclose(outputs(short, TARGET, given), outputs(mod, TARGET, given), rtol=1e-4, atol=1e-4)


def test_an_operator_with_another_line_leaves_the_image() -> None:
    def body(net: Network, x: Any) -> Any:
        return net.emit(op.add(x, conv(net, x, 4, padding=1)))

    mod = network([(1, 4, 20)], body)
    given, short = inputs_of(mod), simplify(mod)
    assert calls(short)[-2:] == ["relax.squeeze", "relax.add"]
    np.testing.assert_allclose(outputs(short, TARGET, given), outputs(mod, TARGET, given), rtol=1e-4, atol=1e-4)


def test_a_constant_with_more_axes_leaves_the_image() -> None:
    def body(net: Network, x: Any) -> Any:
        return net.emit(op.add(conv(net, x, 4, padding=1), net.weight(2, 1, 1, 1)))

    mod = network([(1, 4, 8)], body)
    given, short = inputs_of(mod), simplify(mod)
    made = outputs(short, TARGET, given)
    assert made.shape == (2, 1, 4, 8)
    np.testing.assert_allclose(made, outputs(mod, TARGET, given), rtol=1e-4, atol=1e-4)


def test_they_compute_in_blocks() -> None:
    mod = network([(1, 8, 20)], with_operators_between)
    assert any("conv2d" in operator.name for operator in extract(prepare(mod, TARGET), TARGET))
