"""Variants of a network as one module: it computes what they compute, each slot for itself."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_core.errors import BadModel
from fractune_workers.children.fusing.difference import first_difference
from fractune_workers.children.fusing.fuse import FusedModule, fused
from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.layouts.kernels.implementations import IMPLEMENTATIONS
from tests.unit.workers.children.layouts.networks import Array, Network, calls, network, outputs

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
"""4 lanes; any x86-64 runs it"""
op = relax.op
Body = Callable[..., Any]
IMAGE = [(1, 8, 9, 9)]


def variants(
    body: Body, count: int = 2, shapes: Sequence[Sequence[int]] = IMAGE, implementation: str = ""
) -> list[Any]:
    """Prepared networks with weights of their own."""
    return [prepare(network(shapes, body, seed), TARGET, implementation) for seed in range(count)]


def requests(mod: tvm.IRModule, slots: int) -> list[Array]:
    """Inputs, other ones for each slot."""
    rng = np.random.default_rng(1)
    shapes = [[int(dim) for dim in param.ty.shape] for param in mod["main"].params]
    return [rng.standard_normal([slots, *shape]).astype("float32") for shape in shapes]


def check(made: FusedModule, mods: Sequence[tvm.IRModule], places: Sequence[int]) -> Array:
    """Each slot gives, to the bit, what its variant gives; all slots' outputs."""
    inputs = requests(mods[0], len(places))
    found = outputs(made.module, TARGET, inputs)
    for slot, place in enumerate(places):
        np.testing.assert_array_equal(found[slot], outputs(mods[place], TARGET, [each[slot] for each in inputs]))
    return found


def convolutions(net: Network, x: Any) -> Any:
    """Two of 3 x 3 with an epilogue, a pooling, one in groups, and a classifier behind a reshape."""
    for _ in range(2):
        x = net.emit(op.nn.relu(net.emit(op.add(net.conv(x, 8, padding=1), net.weight(1, 8, 1, 1)))))
    x = net.emit(op.nn.max_pool2d(x, (3, 3), (2, 2)))
    x = net.conv(x, 8, 1, groups=8)
    x = net.emit(op.reshape(x, (1, 8 * 4 * 4)))
    return net.emit(op.nn.softmax(net.emit(op.matmul(x, net.weight(128, 10)))))


@pytest.mark.parametrize("implementation", ["", *IMPLEMENTATIONS])
def test_each_slot_computes_its_variant_to_the_bit(implementation: str) -> None:
    """An empty slot computes the first one."""
    mods = variants(convolutions, implementation=implementation)
    made = fused(mods, [0, 1, 0])
    found = check(made, mods, [0, 1, 0])
    assert not made.apart
    assert len(calls(made.module)) == len(calls(mods[0])), "one call for all slots"
    assert np.abs(found[0] - found[1]).max() > 0.01


def test_other_weights_of_a_variant_change_its_output_alone() -> None:
    one, two, three = variants(convolutions, 3)
    inputs = requests(one, 2)
    before, after = (outputs(fused(mods, [0, 1]).module, TARGET, inputs) for mods in ([one, two], [one, three]))
    np.testing.assert_array_equal(before[0], after[0])
    assert np.abs(before[1] - after[1]).max() > 0.01


def test_operators_are_as_many_as_before_and_have_one_loop_more() -> None:
    mods = variants(convolutions)
    single, both = (extract(mod, TARGET) for mod in (mods[0], fused(mods, [0, 1]).module))
    expected = {each.name: (each.weight, 2 * each.flops, 2 * each.io_bytes) for each in single}
    assert {each.name: (each.weight, each.flops, each.io_bytes) for each in both} == expected
    assert not {each.workload_hash for each in both} & {each.workload_hash for each in single}


def test_weights_are_no_part_of_an_operator() -> None:
    """So that another set of variants is tuned already."""
    mods = variants(convolutions, 3)
    first, second = (extract(fused(each, [0, 1]).module, TARGET) for each in (mods[:2], mods[1:]))
    assert [each.workload_hash for each in first] == [each.workload_hash for each in second]


def branches(net: Network, x: Any) -> Any:
    """Concatenations along channels, of a value that is used again and of one that is not; two outputs of a split."""
    left, right = net.emit(op.nn.relu(net.conv(x, 8, 1))), net.emit(op.nn.relu(net.conv(x, 8, padding=1)))
    joined = net.emit(op.concat([left, right], 1))
    again = net.emit(op.concat([net.conv(joined, 8, 1), left], 1))
    halves = net.emit(op.split(net.emit(op.nn.relu(again)), 2, 1))
    return net.emit(op.add(net.emit(relax.TupleGetItem(halves, 0)), net.emit(relax.TupleGetItem(halves, 1))))


def test_concatenations_and_tuples() -> None:
    mods = variants(branches)
    check(fused(mods, [0, 1]), mods, [0, 1])


def sorting(net: Network, x: Any) -> Any:
    return net.emit(op.sort(net.emit(op.multiply(x, net.weight(1, 8)))))


def test_what_is_no_loop_nest_is_called_once_for_each_slot_and_named() -> None:
    mods = variants(sorting, shapes=[(1, 8)])
    made = fused(mods, [0, 1, 0])
    assert len(made.apart) == 1
    assert "sort" in made.apart[0]
    check(made, mods, [0, 1, 0])


def scaled(net: Network, x: Any) -> Any:
    """By a scalar, which becomes a number in the code."""
    return net.emit(op.nn.relu(net.emit(op.multiply(x, relax.const(np.float32(net.rng.uniform(1, 2)))))))


def test_functions_with_numbers_of_a_variant_are_called_apart() -> None:
    mods = variants(scaled)
    assert first_difference(*mods) == ""
    made = fused(mods, [0, 1])
    assert len(made.apart) == 1
    check(made, mods, [0, 1])


def test_what_depends_on_data_cannot_be_fused() -> None:
    def nonzero(net: Network, x: Any) -> Any:
        return net.emit(op.nonzero(x))

    mods = variants(nonzero, shapes=[(8,)])
    with pytest.raises(BadModel, match="cannot be fused"):
        fused(mods, [0, 1])


def activation(name: str) -> Body:
    return lambda net, x: net.emit(getattr(op, name)(net.conv(x, 8)))


def rows_from(begin: int) -> Body:
    return lambda net, x: net.emit(op.strided_slice(x, [2], [begin], [begin + 4]))


def test_the_first_difference_is_named() -> None:
    (one,) = variants(activation("tanh"), 1)
    (other,) = variants(activation("exp"), 1)
    assert "tanh" in first_difference(one, other)
    (wide,) = variants(lambda net, x: net.emit(op.tanh(net.conv(x, 16))), 1)
    assert "float32[1, 4, 7, 7, 4]" in first_difference(one, wide)
    (large,) = variants(activation("tanh"), 1, [(1, 8, 10, 9)])
    assert first_difference(one, large) == "input 'x0' is float32[1, 8, 10, 9], and not float32[1, 8, 9, 9]"
    first, second = (variants(rows_from(begin), 1)[0] for begin in (0, 1))
    assert first_difference(first, second).endswith("computes something else")
    assert first_difference(one, one) == ""
