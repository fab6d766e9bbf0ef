"""Operators of a model in another implementation: found call by call, and put into the model with their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from fractune_core.workloads import WINOGRAD2, WINOGRAD4
from fractune_workers.children.compiling.implementations import hashes_of, implementations_of, with_implementations
from fractune_workers.children.importing.passes import direct_hash, extract, prepare
from tests.unit.workers.children.layouts.networks import Network, inputs_of, network, outputs

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
"""4 lanes; any x86-64 runs it"""
BOUND = 2e-5
"""of an output's error, relative to the largest output"""
op = relax.op


def two_kinds(net: Network, x: Any) -> Any:
    """Two 3 x 3 convolutions that are one operator, and one of 1 x 1 that has no Winograd; each with an epilogue."""
    for kernel, padding in ((3, 1), (3, 1), (1, 0)):
        made = net.conv(x, 8, kernel, padding=padding)
        x = net.emit(op.nn.relu(net.emit(op.add(made, net.weight(1, 8, 1, 1)))))
    return x


def model() -> tvm.IRModule:
    return network([(1, 8, 9, 9)], two_kinds)


def operator(mod: tvm.IRModule, weight: int) -> str:
    """Workload hash of the convolution that occurs so often."""
    return next(o.workload_hash for o in extract(mod, TARGET) if "conv2d" in o.name and o.weight == weight)


def test_only_what_is_another_program_is_found() -> None:
    direct, other = prepare(model(), TARGET), prepare(model(), TARGET, WINOGRAD2)
    found = implementations_of(direct, other, hashes_of(direct))
    assert list(found) == [operator(direct, 2)]
    (workload,) = found.values()
    assert direct_hash(workload.mod) in {o.workload_hash for o in extract(other, TARGET)}
    assert not implementations_of(direct, direct, hashes_of(direct))


def test_models_that_make_other_calls_have_nothing_in_common() -> None:
    direct, other = prepare(model(), TARGET), prepare(network([(1, 8)], lambda _, x: op.exp(x)), TARGET)
    assert implementations_of(direct, other, hashes_of(direct)) == {}


def test_a_model_with_other_implementations_computes_the_same() -> None:
    direct = prepare(model(), TARGET)
    others = {name: prepare(model(), TARGET, name) for name in (WINOGRAD2, WINOGRAD4)}
    mixed = with_implementations(direct, others, {operator(direct, 2): WINOGRAD4}, hashes_of(direct))
    assert {o.workload_hash for o in extract(mixed, TARGET)} == {
        o.workload_hash for o in extract(others[WINOGRAD4], TARGET)
    }
    expected, found = (outputs(mod, TARGET, inputs_of(direct)) for mod in (direct, mixed))
    assert 0 < np.abs(found - expected).max() < BOUND * np.abs(expected).max()


def test_what_is_not_chosen_stays_as_it_was() -> None:
    direct = prepare(model(), TARGET)
    mixed = with_implementations(direct, {WINOGRAD2: prepare(model(), TARGET, WINOGRAD2)}, {}, hashes_of(direct))
    assert extract(mixed, TARGET) == extract(direct, TARGET)
    expected, found = (outputs(mod, TARGET, inputs_of(direct)) for mod in (direct, mixed))
    np.testing.assert_array_equal(found, expected)
