"""The range of a value in blocks, and its rounded numbers: found without a plain value, and without padded lanes."""

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.importing.passes import planned, prepare
from fractune_workers.children.tvm_api.intrinsics import load_intrinsics
from tests.support.unoptimized import outputs_of
from tests.unit.workers.children.layouts.networks import Network, calls, inputs_of, network, outputs

op = relax.op
NARROW = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
"""4 lanes"""
AVX512 = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"})


def number(net: Network, value: Any) -> Any:
    return net.emit(op.reshape(value, [1]))


def extremes(net: Network, value: Any, shift: float) -> Any:
    moved = net.emit(op.add(value, relax.const(shift)))
    return net.emit(op.concat([number(net, net.emit(op.min(moved))), number(net, net.emit(op.max(moved)))]))


@pytest.mark.parametrize("channels", [8, 6], ids=["whole blocks", "a block filled up"])
def test_the_range_of_an_image_is_that_of_its_channels(channels: int) -> None:
    """Padded lanes hold the shift alone, which would be the smallest or the largest number."""
    shifts = (-50.0, 0.0, 50.0)  # all negative, both signs, all positive
    mod = network(
        [(1, 4, 6, 6)],
        lambda net, x: relax.Tuple([extremes(net, net.conv(x, channels, padding=1), shift) for shift in shifts]),
    )
    given = inputs_of(mod)
    plan = planned(mod, NARROW)
    assert sum(name.startswith("range") for name in calls(plan)) == len(shifts), "one kernel finds both"
    assert not [name for name in calls(plan) if "from_blocks" in name]
    for ours, theirs in zip(outputs_of(plan, NARROW, *given), outputs_of(mod, NARROW, *given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, 8), (64, 1100), (1, 7)], ids=["plain", "shared by cores", "no whole vectors"])
def test_the_range_of_a_plain_value(shape: tuple[int, ...]) -> None:
    mod = network([shape], lambda net, x: extremes(net, x, 0.0))
    (given,) = inputs_of(mod)
    found = outputs(planned(mod, NARROW), NARROW, [given])
    np.testing.assert_array_equal(found, [given.min(), given.max()])


def test_a_range_over_some_axes_is_a_reduction() -> None:
    mod = network([(3, 8)], lambda net, x: net.emit(op.max(x, axis=[0])))
    assert calls(planned(mod, NARROW)) == ["relax.max"]


def dynamically_quantized(net: Network, x: Any, *_: Any) -> Any:
    """As DynamicQuantizeLinear between two convolutions."""
    hidden = net.conv(x, 6, padding=1)
    smallest, largest = net.emit(op.min(hidden)), net.emit(op.max(hidden))
    scale = net.emit(op.divide(net.emit(op.subtract(largest, smallest)), relax.const(255.0)))
    zero = net.emit(op.round(net.emit(op.negative(net.emit(op.divide(smallest, scale))))))
    counted = net.emit(op.add(net.emit(op.round(net.emit(op.divide(hidden, scale)))), zero))
    return net.conv(net.emit(op.clip(counted, 0, 255)), 8, 1)


def test_numbers_are_rounded_in_a_block_that_is_filled_up() -> None:
    mod = network([(1, 4, 6, 6)], dynamically_quantized)
    given = inputs_of(mod)
    plan = planned(mod, NARROW)
    assert sum("blocks" in name for name in calls(plan)) <= len(["the input", "the output"])
    expected = outputs(mod, NARROW, given)
    # A tie may be rounded to the other number.
    np.testing.assert_allclose(outputs(plan, NARROW, given), expected, atol=0.01 * np.abs(expected).max())


def test_numbers_are_rounded_by_vectors() -> None:
    load_intrinsics(AVX512)
    mod = prepare(network([(16, 64)], lambda net, x: net.emit(op.round(x))), AVX512)
    (name,) = (name for name, function in mod.functions.items() if isinstance(function, tvm.tirx.PrimFunc))
    sch = tvm.s_tir.Schedule(tvm.IRModule({"main": mod[name].with_attr("global_symbol", "main")}))
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    _, vector = sch.split(sch.get_loops(block)[-1], [None, 16])
    sch.vectorize(vector)
    code = tvm.compile(sch.mod, target=AVX512).mod.inspect_source("asm")
    assert "vrndscaleps" in code
    assert "vrndscaless" not in code
