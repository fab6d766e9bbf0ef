"""Operators of fused models: the search knows their slots from the axes of one model, and begins as for one."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_core.operators import WINOGRAD2, WINOGRAD4
from fractune_workers.children.fusing.fuse import fused
from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.layouts.kernels.implementations import order_of
from fractune_workers.children.layouts.kernels.packing import own_arguments, pack_winograd
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.searching.spaces.first_candidates import first_candidates
from fractune_workers.children.tvm_api.target import vector_unit
from fractune_workers.children.tvm_api.traces import args_of, read_trace, read_workload
from tests.support.unoptimized import run_kernel
from tests.unit.workers.children.layouts.networks import Network, network

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2})
SLOTS = 3
op = relax.op


def activated(net: Network, x: Any) -> Any:
    return net.emit(op.nn.relu(net.emit(op.add(net.conv(x, 8, padding=1), net.weight(1, 8, 1, 1)))))


def depthwise(net: Network, x: Any) -> Any:
    return net.conv(x, 8, padding=1, groups=8)


def product(net: Network, x: Any) -> Any:
    return net.emit(op.matmul(x, net.weight(24, 16)))


def workload_of(body: Callable[..., Any], name: str, shape: tuple[int, ...], slots: int = SLOTS) -> Any:
    """The heaviest operator's; of one slot, that of the model itself."""
    prepared = prepare(network([shape], body), TARGET, name)
    mod = fused([prepared], [0] * slots).module if slots > 1 else prepared
    return read_workload(max(extract(mod, TARGET), key=lambda each: each.flops).workload_json)


CASES = [
    (activated, "", (1, 8, 9, 12)),
    (activated, WINOGRAD2, (1, 8, 9, 12)),
    (activated, WINOGRAD4, (2, 8, 9, 12)),
    (depthwise, "", (1, 8, 9, 12)),
    (product, "", (6, 24)),
]


@pytest.mark.parametrize(("body", "name", "shape"), CASES)
def test_candidates_compute_what_the_operator_does(body: Callable[..., Any], name: str, shape: tuple[int, ...]) -> None:
    workload = workload_of(body, name, shape)
    search = OperatorSearch(workload, TARGET, seed=1, threads=1)
    traces = [item["trace"] for item in search.propose(2, lambda trace: trace)]
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(dims).astype(dtype) for _, dtype, dims in args_of(workload)]
    expected = run_kernel(workload.mod, TARGET, *args)
    for trace in traces:
        found = run_kernel(read_trace(trace, workload).mod, TARGET, *args)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def nests_of(mod: Any) -> list[tuple[bool, list[int]]]:
    """Of each loop nest: whether its outermost loop is parallel, and the extents of its loops."""
    nests = []

    def walk(stmt: Any, extents: list[int], *, parallel: bool) -> None:
        if isinstance(stmt, tvm.tirx.For):
            is_parallel = int(stmt.kind) == int(tvm.tirx.ForKind.PARALLEL)
            walk(stmt.body, [*extents, int(stmt.extent)], parallel=parallel if extents else is_parallel)
        elif isinstance(stmt, tvm.tirx.SeqStmt):
            for each in stmt.seq:
                walk(each, extents, parallel=parallel)
        elif extents:
            nests.append((parallel, extents))

    walk(mod["main"].body.block.body, [], parallel=False)
    return nests


@pytest.mark.parametrize(("body", "name", "shape"), CASES)
def test_the_first_candidates_are_those_of_one_core_within_a_parallel_loop_over_slots(
    body: Callable[..., Any], name: str, shape: tuple[int, ...]
) -> None:
    """All loops of one slot are inside, as they are in the operator of the model itself."""
    firsts = []
    for slots in (1, SLOTS):
        workload = workload_of(body, name, shape, slots)
        search = OperatorSearch(workload, TARGET, seed=1, threads=1)
        firsts.append(next(first_candidates(workload, search.spaces, search.postprocs, vector_unit(TARGET))))
    (one, all_slots) = (nests_of(first.mod) for first in firsts)
    assert len(one) == len(all_slots)
    for (_, own), (is_parallel, extents) in zip(one, all_slots, strict=True):
        assert is_parallel
        assert extents[0] % SLOTS == 0
        assert prod(extents) == SLOTS * prod(own)
        inner, alone = ([extent for extent in each[1:] if extent > 1] for each in (extents, own))
        both = min(len(inner), len(alone))  # how many loops are in the parallel one depends on how many turns that has
        assert inner[len(inner) - both :] == alone[len(alone) - both :]


def test_the_order_of_implementations_is_that_of_one_slot() -> None:
    image, weights, output = (1, 4, 13, 13, 16), (12, 3, 3, 3, 16, 16), (1, 12, 13, 13, 16)
    slotted = [(4, *each) for each in (image, weights, (1, 12, 1, 1, 16), output)]
    assert order_of(slotted) == order_of([image, weights, (1, 12, 1, 1, 16), output])


def test_each_slot_gets_its_own_weights_in_another_implementation() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((SLOTS, 2, 2, 3, 3, 4, 4)).astype("float32")
    image, output = np.zeros((SLOTS, 1, 2, 8, 8, 4), "float32"), np.zeros((SLOTS, 1, 2, 8, 8, 4), "float32")
    found = own_arguments(WINOGRAD2, [image, weights, output], [])
    assert found[0] is image
    assert found[2] is output
    for slot in range(SLOTS):
        np.testing.assert_array_equal(found[1][slot], pack_winograd(WINOGRAD2, weights[slot]))
