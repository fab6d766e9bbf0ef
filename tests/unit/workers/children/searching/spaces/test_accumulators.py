"""For a GPU, the threads of a candidate keep no more sums than they have registers."""

from __future__ import annotations

import tvm
from tvm import te
from tvm.s_tir import Schedule

from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.searching.spaces.sketches import FitsRegisters, accumulators
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.children.tvm_api.traces import Workload


def product(size: int) -> tvm.IRModule:
    left, right = (te.placeholder((size, size), name=name) for name in "ab")
    k = te.reduce_axis((0, size))
    out = te.compute((size, size), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="c")
    return tvm.IRModule({"main": te.create_prim_func([left, right, out])})


def tiled(rows: list[int], columns: list[int]) -> Schedule:
    """A product whose loops have these tiles, and a reduction that does not count."""
    sch = Schedule(product(512))
    i, j, k = sch.get_loops(sch.get_sblock("c"))
    for loop, tile in ((i, rows), (j, columns), (k, [2, 4, 64])):
        sch.split(loop, sch.sample_perfect_tile(loop, len(tile), decision=tile))
    return sch


def test_virtual_threads_and_the_tile_of_a_thread_count() -> None:
    sch = tiled([4, 2, 16, 4, 1], [2, 2, 8, 1, 16])
    assert accumulators(sch.trace) == 2 * 4 * 1 * 2 * 1 * 16
    assert not FitsRegisters().apply(sch)
    assert FitsRegisters().apply(tiled([4, 2, 16, 4, 1], [4, 1, 8, 1, 16]))


def test_every_proposal_fits() -> None:
    search = OperatorSearch(Workload.of(product(256)), parse_target("cuda:sm_90", 1), 5, 1)
    traces = [search._pending[each["candidate"]].trace for each in search.propose(8, str)]
    assert len(traces) == 8
    assert max(map(accumulators, traces)) <= 255
