"""Schedule transfer: what fits is adapted and still computes the same; what does not fit gives nothing."""

import json
from math import prod
from typing import Any
from unittest.mock import Mock

import pytest
import tvm
import tvm_ffi
from hypothesis import given, strategies as st
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms

from fractune_core.records import UNTUNED
from fractune_workers.children.searching.operator_search import adapt, scale_tile, seeds
from fractune_workers.children.searching.spaces.sketches import sketches_of
from fractune_workers.children.tvm_api.arrays import difference, random_args
from fractune_workers.children.tvm_api.artifacts import load_objects
from fractune_workers.children.tvm_api.compiled import build_object
from fractune_workers.children.tvm_api.intrinsics import keep_out_gpu_intrinsics
from fractune_workers.children.tvm_api.processor import cpu_processor
from fractune_workers.children.tvm_api.traces import Workload, args_of, read_trace, write_trace
from tests.support.unoptimized import unoptimized

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}


def conv(channels: int, size: int, *, kernel: int = 3, add: bool = False, relu: bool = False) -> tvm.IRModule:
    data = te.placeholder((1, 8, size, size), name="data")
    weight = te.placeholder((channels, 8, kernel, kernel), name="weight")
    args, out = [data, weight], topi.nn.conv2d_nchw(data, weight, 1, kernel // 2, 1)
    if add:
        args.append(te.placeholder((1, channels, 1, 1), name="bias"))
        out = topi.add(out, args[-1])
    return module([*args, topi.nn.relu(out) if relu else out])


def matmul(rows: int, columns: int, inner: int) -> tvm.IRModule:
    a, b = te.placeholder((rows, inner), name="a"), te.placeholder((inner, columns), name="b")
    return module([a, b, topi.matmul(a, b)])


def relu_alone() -> tvm.IRModule:
    data = te.placeholder((1, 8, 14, 14), name="data")
    return module([data, topi.nn.relu(data)])


def module(args: list[Any]) -> tvm.IRModule:
    return Workload.of(tvm.IRModule({"main": te.create_prim_func(args)})).mod


class Operator:
    """An operator with its design space, and samples of it."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self.context = ms.TuneContext(
            mod=mod,
            target=tvm.target.Target(TARGET),
            space_generator="post-order-apply",
            search_strategy=ms.search_strategy.ReplayTrace(),
            rand_state=3,
            num_threads=1,
        )
        self.space = self.context.generate_design_space(), self.context.space_generator.postprocs

    def samples(self, count: int) -> list[Any]:
        self.context.pre_tuning(count, count, self.space[0], ms.database.MemoryDatabase(), None)
        samples = [candidate.sch for candidate in self.context.generate_measure_candidates()]
        self.context.post_tuning()
        return samples

    def adapted(self, trace: str) -> Any:
        spaces, postprocs = self.space
        return adapt(trace, self.mod, sketches_of(spaces), postprocs)


@pytest.fixture(scope="module", autouse=True)
def _intrinsics() -> None:
    keep_out_gpu_intrinsics()


@pytest.fixture(scope="module")
def source() -> Operator:
    return Operator(conv(16, 14, add=True, relu=True))


@pytest.fixture(scope="module")
def traces(source: Operator) -> list[str]:
    return [write_trace(sch.trace) for sch in source.samples(8)]


def module_hash(sch: Any) -> int:
    return int(tvm_ffi.structural_hash(sch.mod))


def tiles(trace: str) -> list[list[int]]:
    steps, decisions = json.loads(trace)
    return [decision for at, decision in decisions if steps[at][0] == "SamplePerfectTile"]


def output_of(mod: tvm.IRModule) -> Any:
    kernel = load_objects([build_object(mod, unoptimized(tvm.target.Target(TARGET)))])
    args = random_args(args_of(Workload.of(mod)), 5, cpu_processor())
    kernel["main"](*args)
    return args[-1].numpy()


def assert_same_output(mod: tvm.IRModule, sch: Any) -> None:
    assert difference(output_of(sch.mod), output_of(mod)) < 1e-3


def test_an_operator_adapts_to_itself_unchanged(source: Operator, traces: list[str]) -> None:
    workload = Workload.of(source.mod)
    for trace in traces:
        assert module_hash(source.adapted(trace)) == module_hash(read_trace(trace, workload))


@pytest.mark.parametrize(
    "other",
    [
        {"channels": 24, "size": 12, "add": True, "relu": True},
        {"channels": 16, "size": 14, "add": True},
        {"channels": 32, "size": 7},
        {"channels": 16, "size": 14, "kernel": 1, "relu": True},
    ],
    ids=["other shape", "other neighbours", "alone", "other kernel"],
)
def test_schedules_are_transferred_between_near_operators_and_compute_the_same(
    traces: list[str], other: dict[str, Any]
) -> None:
    mod = conv(**other)
    schedules = seeds(traces, mod, *Operator(mod).space)
    assert len(schedules) > len(traces) / 2
    assert_same_output(mod, schedules[-1])


def test_an_adapted_schedule_can_be_replayed_from_its_trace(traces: list[str]) -> None:
    mod = conv(24, 12)
    sch = Operator(mod).adapted(traces[0])
    assert module_hash(read_trace(write_trace(sch.trace), Workload.of(mod))) == module_hash(sch)


def test_decisions_are_taken_from_the_source(traces: list[str]) -> None:
    destination = Operator(conv(24, 12, add=True))
    for trace in traces:
        given_tiles = tiles(trace)
        taken_tiles = tiles(write_trace(destination.adapted(trace).trace))
        assert [prod(tile) for tile in taken_tiles] == [1, 24, 12, 12, 8, 3, 3]
        for given_tile, taken in zip(given_tiles, taken_tiles, strict=True):
            assert taken == scale_tile(given_tile, prod(taken), 64)


def test_the_sketch_with_the_same_structure_is_taken(source: Operator) -> None:
    destination = Operator(conv(24, 12, relu=True))
    for space in source.space[0]:
        trace = write_trace(space.trace)
        steps = [step[0] for step in json.loads(trace)[0]]
        adapted = json.loads(write_trace(destination.adapted(trace).trace))[0]
        assert [step[0] for step in adapted].count("ReverseComputeAt") == steps.count("ReverseComputeAt")


def test_matmul_to_matmul() -> None:
    source, mod = Operator(matmul(32, 48, 64)), matmul(16, 64, 40)
    schedules = seeds([write_trace(sch.trace) for sch in source.samples(6)], mod, *Operator(mod).space)
    assert schedules
    assert_same_output(mod, schedules[-1])


def test_other_anchors_do_not_fit(source: Operator, traces: list[str]) -> None:
    others = [Operator(matmul(16, 16, 16)), Operator(relu_alone())]
    for other in others:
        assert other.adapted(traces[0]) is None
    assert source.adapted(write_trace(others[0].samples(1)[0].trace)) is None
    assert source.adapted(UNTUNED) is None
    assert source.adapted(json.dumps([json.loads(traces[0])[0], []])) is None


def test_a_failing_postproc_gives_no_candidate(source: Operator, traces: list[str]) -> None:
    refuse, fail = Mock(), Mock()
    refuse.apply.return_value = False
    fail.apply.side_effect = tvm.error.InternalError("cannot")
    for postproc in (refuse, fail):
        assert adapt(traces[0], source.mod, sketches_of(source.space[0]), [postproc]) is None


def test_seeds_keep_the_order_and_drop_duplicates(source: Operator, traces: list[str]) -> None:
    hashes = [module_hash(sch) for sch in seeds([*traces, *traces], source.mod, *source.space)]
    assert hashes == list(dict.fromkeys(module_hash(source.adapted(trace)) for trace in traces))


@given(
    st.lists(st.integers(1, 70), min_size=2, max_size=5),
    st.integers(1, 2048),
    st.integers(1, 64),
)
def test_scaled_tiles(tile: list[int], extent: int, max_innermost: int) -> None:
    scaled = scale_tile(tile, extent, max_innermost)
    assert prod(scaled) == extent
    assert len(scaled) == len(tile)
    assert scaled[-1] <= max_innermost


@given(st.lists(st.integers(1, 16), min_size=2, max_size=4))
def test_a_tile_of_the_same_extent_stays(tile: list[int]) -> None:
    assert scale_tile(tile, prod(tile), 64) == tile
