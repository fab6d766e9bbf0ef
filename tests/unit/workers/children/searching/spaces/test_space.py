"""The design spaces: vectorized loops on a CPU; asynchronous copies and shared memory on a GPU."""

import json

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule, meta_schedule as ms

from fractune_workers.children.searching.operator_search import OperatorSearch, space_for
from fractune_workers.children.searching.spaces.sketches import FitsRegisters, accumulators
from fractune_workers.children.tvm_api.cuda_target import ASYNC_COPIES
from fractune_workers.children.tvm_api.intrinsics import load_intrinsics
from fractune_workers.children.tvm_api.target import parse_target, vector_unit
from fractune_workers.children.tvm_api.traces import Workload, read_trace


@pytest.mark.parametrize(("mcpu", "lanes"), [("x86-64", 4), ("x86-64-v3", 8), ("skylake-avx512", 16)])
def test_vectors_are_as_wide_as_the_processors(mcpu: str, lanes: int) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    load_intrinsics(target)
    data = te.placeholder((8, 64, 64), name="data")
    mod = tvm.IRModule({"main": te.create_prim_func([data, te.compute(data.shape, lambda *at: data(*at) + 1.0)])})
    context = ms.TuneContext(mod=mod, target=target, space_generator=space_for(Workload.of(mod), target), rand_state=1)
    (sch,) = context.generate_design_space()
    sch.enter_postproc()
    assert all(rule.apply(sch) for rule in context.space_generator.postprocs)
    assert f"T.vectorized(T.int64({lanes}))" in sch.mod.script() or f"T.vectorized({lanes})" in sch.mod.script()
    assert vector_unit(target).lanes == lanes


def test_a_plain_vector_unit_has_sixteen_registers_and_a_wide_one_more() -> None:
    registers = {
        mcpu: vector_unit(tvm.target.Target({"kind": "llvm", "mcpu": mcpu})).registers
        for mcpu in ("x86-64", "x86-64-v3", "skylake-avx512")
    }
    assert registers == {"x86-64": 16, "x86-64-v3": 16, "skylake-avx512": 32}


def test_zen_4_begins_one_multiplication_of_512_bits_a_cycle() -> None:
    units = {
        mcpu: vector_unit(tvm.target.Target({"kind": "llvm", "mcpu": mcpu})).multiplies
        for mcpu in ("znver3", "znver4", "znver5", "sapphirerapids")
    }
    assert units == {"znver3": 2, "znver4": 1, "znver5": 2, "sapphirerapids": 2}


def product(size: int) -> Workload:
    left, right = (te.placeholder((size, size), name=name) for name in "ab")
    k = te.reduce_axis((0, size))
    out = te.compute((size, size), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="c")
    return Workload.of(tvm.IRModule({"main": te.create_prim_func([left, right, out])}))


@pytest.mark.parametrize(
    ("target", "with_copies", "without"), [("cuda:sm_90", 2, 3), ("cuda:sm_75", 0, 1), ("llvm", 0, 3)]
)
def test_each_pipeline_of_tvm_is_searched_with_them_and_without(target: str, with_copies: int, without: int) -> None:
    """TVM plans two pipelines, of four and five stages, from compute capability 8.0 on."""
    search = OperatorSearch(product(256), parse_target(target, 1), 1, 1)
    decided = [ASYNC_COPIES in str(sketch.trace) for sketch in search.spaces]
    assert (decided.count(True), decided.count(False)) == (with_copies, without)


def test_the_decision_is_in_the_trace_and_comes_back_from_it() -> None:
    workload = product(256)
    search = OperatorSearch(workload, parse_target("cuda:sm_90", 1), 1, 1)
    traces = [each["trace"] for each in search.propose(8, str)]
    decided = [any(ASYNC_COPIES in step[2] for step in json.loads(trace)[0]) for trace in traces]
    assert set(decided) == {True, False}
    assert [ASYNC_COPIES in read_trace(trace, workload).mod.script() for trace in traces] == decided


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


def padded_product(size: int) -> tvm.IRModule:
    left, right = (te.placeholder((size, size), name=name) for name in "ab")
    k = te.reduce_axis((0, size))
    out = te.compute((size, size), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="c")
    return tvm.IRModule({"main": te.create_prim_func([left, right, out])})


def tiled(rows: list[int], columns: list[int]) -> Schedule:
    """A product whose loops have these tiles, and a reduction that does not count."""
    sch = Schedule(padded_product(512))
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
    search = OperatorSearch(Workload.of(padded_product(256)), parse_target("cuda:sm_90", 1), 5, 1)
    traces = [search._pending[each["candidate"]].trace for each in search.propose(8, str)]
    assert len(traces) == 8
    assert max(map(accumulators, traces)) <= 255
