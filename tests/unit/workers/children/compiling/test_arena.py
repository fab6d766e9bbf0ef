"""A model by its plan: the numbers of TVM's virtual machine, in memory that is planned."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_core.files.plans import ARENA
from fractune_runtime.tvm_runtime.arena import Planned
from fractune_runtime.tvm_runtime.variants import Called, Variant
from fractune_workers.children.compiling.variants import compile_variants
from fractune_workers.children.importing.passes import prepare
from tests.support.unoptimized import outputs_of
from tests.unit.workers.children.layouts.networks import Network, inputs_of, loaded, network

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
SHAPE = (1, 8, 6, 8)
op = relax.op

Body = Callable[..., Any]


def chain(net: Network, x: Any, y: Any) -> Any:
    return net.emit(op.nn.softmax(net.emit(op.add(net.emit(op.nn.softmax(x)), y))))


def concatenated(net: Network, x: Any, y: Any) -> Any:
    return net.emit(op.concat([net.emit(op.nn.relu(x)), net.emit(op.negative(y))], 1))


def in_another_shape(net: Network, x: Any, y: Any) -> Any:
    return net.emit(op.reshape(chain(net, x, y), (6, 64)))


def read_later(net: Network, x: Any, y: Any) -> Any:
    first = net.emit(op.nn.softmax(x))
    second = net.emit(op.nn.softmax(net.emit(op.add(first, y))))
    return relax.Tuple([first, relax.Tuple([second, net.emit(op.max(second, [1]))])])


def an_input(net: Network, x: Any, y: Any) -> Any:
    return relax.Tuple([x, chain(net, x, y)])


def an_input_in_another_shape(net: Network, x: Any, _: Any) -> Any:
    return net.emit(op.reshape(x, (6, 64)))


def one_twice(net: Network, x: Any, y: Any) -> Any:
    value = chain(net, x, y)
    return relax.Tuple([value, value])


def of_parts(net: Network, x: Any, y: Any) -> Any:
    """A part of an output, and a constant, are outputs too."""
    part = net.emit(op.nn.relu(x))
    whole = net.emit(op.concat([part, net.emit(op.negative(y))], 0))
    return relax.Tuple([part, net.emit(op.nn.softmax(whole)), whole, net.emit(relax.const([1.0, 2.0], "float32"))])


def branched(net: Network, x: Any, y: Any) -> Any:
    """The larger of two sums decides."""
    is_larger = net.emit(op.greater(net.emit(op.sum(x)), net.emit(op.sum(y))))
    return net.builder.emit(relax.If(is_larger, op.nn.relu(x), op.negative(y)))


BODIES = [
    chain, concatenated, in_another_shape, an_input_in_another_shape, read_later, an_input, one_twice, of_parts,
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_the_plan_gives_what_the_virtual_machine_gives(body: Body) -> None:
    mod = network([SHAPE, SHAPE], body)
    planned = compiled(mod)
    assert isinstance(planned, Planned)
    inputs = inputs_of(mod)
    expected, given = outputs_of(prepare(mod, TARGET), TARGET, *inputs), [tvm.runtime.tensor(each) for each in inputs]
    results = [tvm.runtime.tensor(np.full_like(each, -7)) for each in expected]
    bound = planned.bound(given, results)
    for _ in range(2):
        bound()
        for found in (results, planned.run(given), planned.held(given)):
            for one, each in zip(found, expected, strict=True):
                np.testing.assert_array_equal(np.from_dlpack(one), each)
    sizes = [each.size for each in planned.plan.tensors if each.place == ARENA]
    assert planned.plan.arena_bytes <= sum(sizes) + 64 * len(sizes)


def test_tensors_that_are_not_needed_together_share_memory() -> None:
    def long(net: Network, x: Any, _: Any) -> Any:
        for _ in range(6):
            x = net.emit(op.nn.softmax(x))
        return x

    planned = compiled(network([SHAPE, SHAPE], long))
    assert isinstance(planned, Planned)
    assert [call.kernel for call in planned.plan.calls] == ["softmax"] * 6
    assert planned.plan.arena_bytes == 2 * 8 * 6 * 8 * 4, "one is read, and one is written"


def test_branches_need_the_virtual_machine() -> None:
    assert isinstance(compiled(network([SHAPE, SHAPE], branched)), Called)


def compiled(mod: tvm.IRModule) -> Variant:
    return loaded(compile_variants([prepare(mod, TARGET)], TARGET, [{}], {})[0])
