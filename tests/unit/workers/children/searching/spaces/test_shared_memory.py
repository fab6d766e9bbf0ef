"""For a GPU, a candidate that requests its shared memory at the launch may have more than one with static memory."""

from __future__ import annotations

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from fractune_workers.children.searching.operator_search import space_for
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.children.tvm_api.traces import Workload

THREADS = 256


def staged(scope: str, kib: int) -> Schedule:
    """A copy by blocks of THREADS threads, through `kib` KiB of memory of a scope."""
    tile = kib * 1024 // 4
    x = te.placeholder((4 * tile,), name="x")
    mod = tvm.IRModule({"main": te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] + 1.0, name="y")])})
    sch = Schedule(mod)
    outer, inner = sch.split(sch.get_loops(sch.get_sblock("y"))[0], [None, tile])
    sch.bind(outer, "blockIdx.x")
    copy = sch.cache_read("y", 0, scope)
    sch.compute_at(copy, outer)
    for loop in (inner, sch.get_loops(copy)[-1]):
        sch.bind(sch.split(loop, [None, THREADS])[1], "threadIdx.x")
    return sch


def passes(sch: Schedule, target: str) -> list[bool]:
    """Whether the space lets a schedule pass, in its own thread and in another."""
    parsed = parse_target(target, 1)
    context = ms.TuneContext(mod=sch.mod, target=parsed, space_generator=space_for(Workload.of(sch.mod), parsed))
    own = context.space_generator.postprocs
    return [all(each.apply(sch.copy()) for each in rules) for rules in (own, [each.clone() for each in own])]


@pytest.mark.parametrize(
    ("scope", "kib", "fits"),
    [
        ("shared", 48, True),
        ("shared", 64, False),
        ("shared.dyn", 64, True),
        ("shared.dyn", 227, True),
        ("shared.dyn", 256, False),
    ],
)
def test_each_kind_of_memory_has_its_own_limit(scope: str, kib: int, *, fits: bool) -> None:
    assert passes(staged(scope, kib), "cuda:sm_90") == [fits, fits]


def test_a_target_with_less_memory_keeps_its_limit() -> None:
    limited = '{"kind": "cuda", "arch": "sm_90", "max_shared_memory_per_block": 16384}'
    assert passes(staged("shared.dyn", 16), limited) == [True, True]
    assert passes(staged("shared.dyn", 32), limited) == [False, False]
