"""Which plain operator stands for which of ours: of made-up calls, and of a small network through TVM."""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from benchmarks.support.counterparts import Call, counterparts
from benchmarks.support.plain_child import calls, plain
from fractune_workers.children.compiling.implementations import calls_of, function_of
from fractune_workers.children.importing.passes import direct_hash, prepare
from fractune_workers.children.rewriting.expressions import is_constant
from tests.unit.workers.children.layouts.networks import Network, network

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
"""4 lanes; any x86-64 runs it"""
KINDS = ("conv2d",)
op = relax.op


def call(name: str, workload_hash: str, flops: float = 100.0, computed: int = 1) -> Call:
    return Call(name, workload_hash, flops, computed)


def reasons(ours: Sequence[Call], plain_calls: Sequence[Call]) -> dict[str, str]:
    """Of a comparison in which nothing has a counterpart."""
    found, why_not = counterparts(ours, plain_calls, KINDS)
    assert found == {}
    return why_not


def test_operators_are_matched_by_their_places_whatever_lies_between() -> None:
    ours = [call("conv2d", "a"), call("to_blocks", "t"), call("conv2d1", "b"), call("conv2d", "a"), call("mean", "m")]
    theirs = [call("conv2d1", "p"), call("conv2d", "q"), call("pool", "x"), call("conv2d1", "p")]
    assert counterparts(ours, theirs, KINDS) == ({"a": "p", "b": "q"}, {})


def test_each_kind_counts_its_own_places() -> None:
    ours = [call("matmul", "a"), call("conv2d", "b")]
    theirs = [call("conv2d", "p"), call("matmul", "q"), call("matmul", "r")]
    found, why_not = counterparts(ours, theirs, ("conv2d", "matmul"))
    assert found == {"b": "p"}
    assert why_not == {"a": "our model calls matmul 1 times, the plain one 2 times"}


def test_what_is_one_operator_here_and_two_there_has_no_counterpart() -> None:
    one, two = [call("conv2d", "a"), call("conv2d", "a")], [call("conv2d", "p"), call("conv2d1", "q")]
    assert list(reasons(one, two)) == ["a"]
    assert list(reasons(two, one)) == ["p", "q"]


def test_other_steps_operands_or_arithmetic_are_no_counterpart() -> None:
    ours = call("fused_conv2d1_add_relu", "a")
    for other in (
        call("fused_conv2d_add", "p"),
        call("fused_conv2d_add_tanh", "p"),
        call("fused_conv2d_add_relu", "p", computed=2),
        call("fused_conv2d_add_relu", "p", flops=250.0),
        call("fused_conv2d_add_relu", "p", flops=40.0),
    ):
        assert f"the plain one in its place is {other.name} (" in reasons([ours], [other])["a"]


def test_a_normalisation_beside_the_convolution_and_a_block_filled_up_are_no_difference() -> None:
    theirs = call("fused_conv2d7_subtract_divide_multiply1_add2_relu", "p", flops=80.0)
    assert counterparts([call("fused_conv2d_add_relu", "a")], [theirs], KINDS) == ({"a": "p"}, {})


def test_what_differs_at_one_place_is_no_counterpart_though_it_agrees_at_another() -> None:
    ours = [call("conv2d", "a", computed=2), call("conv2d", "a")]
    assert list(reasons(ours, [call("conv2d", "p"), call("conv2d", "p")])) == ["a"]


def two_branches(net: Network, x: Any) -> Any:
    """Of 1 x 1 and of 3 x 3, the later one ending first, and summed; twice over, so that each operator occurs twice."""
    for _ in range(2):
        narrow, wide = net.conv(x, 8, 1), net.conv(x, 8, 3, padding=1)
        x = net.emit(op.add(net.emit(op.nn.relu(wide)), net.emit(op.nn.leakyrelu(narrow))))
    return net.conv(net.emit(op.nn.max_pool2d(x, (2, 2))), 7, 3)


def by_weights(mod: tvm.IRModule) -> dict[tuple[float, ...], str]:
    """Workload hash of each convolution by its weights, whose order and blocks do not count."""
    found = {}
    for each in calls_of(mod):
        constants = [operand.value.numpy() for operand in each.args[1].fields if is_constant(operand)]
        if constants:
            weights = max(constants, key=lambda numbers: numbers.size)
            found[tuple(sorted(weights[weights != 0].tolist()))] = direct_hash(function_of(mod, each))
    return found


def test_operators_of_a_network_find_those_of_the_same_weights() -> None:
    mod = network([(1, 8, 9, 9)], two_branches)
    ours, theirs = prepare(mod, TARGET), plain(mod, TARGET)
    found, why_not = counterparts(calls(ours, TARGET), calls(theirs, TARGET), KINDS)
    assert why_not == {}
    own, others = by_weights(ours), by_weights(theirs)
    assert len(own) == 5
    assert found == {name: others[weights] for weights, name in own.items()}
    assert len(set(found.values())) == 3
