"""Transposed convolutions in blocks: whatever steps, padding and channels, the same numbers come out."""

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.importing.passes import planned
from fractune_workers.children.rewriting.simplify import simplify
from tests.support.unoptimized import outputs_of
from tests.unit.workers.children.layouts.networks import Network, calls, inputs_of, network

NARROW = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
"""4 lanes; any x86-64 runs it"""

IMAGES: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "twice as large, no overlap": (8, 16, 2, {"strides": 2}),
    "of few channels": (8, 1, 2, {"strides": 2}),
    "odd channels": (7, 6, 2, {"strides": 2}),
    "an overlap, padded": (8, 8, 4, {"strides": 2, "padding": 1}),
    "a phase with fewer weights": (8, 8, 3, {"strides": 2, "padding": 1, "output_padding": 1}),
    "steps of three, odd padding": (8, 12, 5, {"strides": 3, "padding": (1, 2, 0, 1)}),
    "steps longer than the weights": (8, 8, 2, {"strides": 3, "output_padding": 1}),
    "different steps": (8, 8, 4, {"strides": (2, 4), "padding": (1, 0)}),
    "steps along one axis": (8, 8, 3, {"strides": (1, 2), "padding": 1}),
    "dilated": (8, 8, 3, {"strides": 2, "dilation": 2}),
    "depthwise": (8, 8, 4, {"strides": 2, "padding": 1, "groups": 8}),
    "depthwise, odd channels": (6, 6, 4, {"strides": 2, "padding": 1, "groups": 6}),
}
"""channels in and out, size of the weights, options"""
LEFT: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "groups of several channels": (8, 8, 2, {"strides": 2, "groups": 2}),
    "steps much longer than the weights": (8, 8, 1, {"strides": 3}),
    "padding beyond the weights": (8, 8, 2, {"strides": 2, "padding": 5}),
}


def transposed(net: Network, image: Any, case: tuple[int, int, int, dict[str, Any]]) -> Any:
    channels, out, kernel, options = case
    weight = net.weight(channels, out // options.get("groups", 1), kernel, kernel)
    return net.emit(relax.op.nn.conv2d_transpose(image, weight, **options))


def check(mod: tvm.IRModule) -> list[str]:
    """Each output of the planned module is that of the plain one; returns what it calls."""
    plan, given = planned(simplify(mod), NARROW), inputs_of(mod)
    for ours, theirs in zip(outputs_of(plan, NARROW, *given), outputs_of(mod, NARROW, *given), strict=True):
        assert np.ptp(theirs) > 0
        np.testing.assert_allclose(ours, theirs, 1e-4, 1e-4 * np.abs(theirs).max())
    return calls(plan)


@pytest.mark.parametrize(("cases", "left"), [(IMAGES, 0), (LEFT, len(LEFT))], ids=["in blocks", "left"])
def test_they_are_dense_convolutions(cases: dict[str, Any], left: int) -> None:
    def body(net: Network, *images: Any) -> Any:
        return relax.Tuple([transposed(net, x, case) for x, case in zip(images, cases.values(), strict=True)])

    names = check(network([(1, channels, 7, 6) for channels, *_ in cases.values()], body))
    assert sum("conv2d_transpose" in name for name in names) == left


def test_a_chain_stays_in_blocks() -> None:
    """A batch of two; the bias and the activation are computed in blocks."""

    def body(net: Network, image: Any) -> Any:
        first = transposed(net, net.conv(image, 8), (8, 8, 2, {"strides": 2}))
        biased = net.emit(relax.op.nn.relu(net.emit(relax.op.add(first, net.weight(1, 8, 1, 1)))))
        return relax.Tuple([net.conv(biased, 8)])

    assert sum("blocks" in name for name in check(network([(2, 8, 6, 6)], body))) == 2


def test_lines_are_images_of_height_one() -> None:
    def body(net: Network, line: Any) -> Any:
        weight = net.weight(8, 8, 5)
        made = relax.op.nn.conv1d_transpose(line, weight, strides=3, padding=1, output_padding=1)
        return relax.Tuple([net.emit(made)])

    assert not [name for name in check(network([(1, 8, 11)], body)) if "transpose" in name]
