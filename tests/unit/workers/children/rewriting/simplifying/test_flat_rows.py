"""Reshapes of the axes before the last move down, meet and cancel; the numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.rewriting.simplifying.simplify import simplify
from tests.unit.workers.children.layouts.networks import Network, calls, inputs_of, network, outputs

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
op = relax.op


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
