"""The second entry of a model: the same numbers, in memory of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_core.files.manifests import MAIN_INTO
from fractune_workers.children.compiling.variants import compile_variants
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.tvm_api.artifacts import load_objects
from tests.unit.workers.children.layouts.networks import Network, inputs_of, network

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


@pytest.mark.parametrize("body", [chain, concatenated, in_another_shape, an_input_in_another_shape, read_later])
def test_outputs_are_computed_in_memory_of_the_caller(body: Body) -> None:
    mod = network([SHAPE, SHAPE], body)
    machine = machine_of(mod)
    given = [tvm.runtime.tensor(each) for each in inputs_of(mod)]
    expected = [each.numpy() for each in flat(machine["main"](*given))]
    for _ in range(2):
        results = [tvm.runtime.tensor(np.full_like(each, -7)) for each in expected]
        machine[MAIN_INTO](*given, *results)
        for found, each in zip(results, expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), each)
    with pytest.raises((ValueError, RuntimeError)):
        machine[MAIN_INTO](*given, *[tvm.runtime.tensor(np.zeros(3, "float32")) for _ in expected])


@pytest.mark.parametrize("body", [an_input, one_twice])
def test_an_output_without_memory_of_its_own_has_no_such_entry(body: Body) -> None:
    machine = machine_of(network([SHAPE, SHAPE], body))
    with pytest.raises(AttributeError):
        machine[MAIN_INTO]


def machine_of(mod: tvm.IRModule) -> Any:
    objects = compile_variants([prepare(mod, TARGET)], TARGET, [{}], {})[0]
    return relax.VirtualMachine(load_objects(list(objects.values())), tvm.cpu()).module


def flat(result: Any) -> list[Any]:
    return [result] if hasattr(result, "numpy") else [tensor for part in result for tensor in flat(part)]
