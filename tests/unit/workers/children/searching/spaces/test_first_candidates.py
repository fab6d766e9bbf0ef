"""First candidates: valid schedules that compute the same, the register tile in place, the same for every seed."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import Schedule

from fractune_workers.children.importing.passes import Operator, extract, prepare
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.searching.spaces.first_candidates import MOST, first_candidates, unit_for
from fractune_workers.children.searching.spaces.winograd import first_tiles, is_winograd
from fractune_workers.children.tvm_api.target import VectorUnit, vector_unit
from fractune_workers.children.tvm_api.traces import args_of, read_trace, read_workload
from tests.support.unoptimized import run_kernel
from tests.unit.workers.children.layouts.networks import Network, network

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2})
op = relax.op


def conv(net: Network, x: Any) -> Any:
    return net.emit(op.nn.relu(net.emit(op.add(net.conv(x, 16, padding=1), net.weight(1, 16, 1, 1)))))


def depthwise(net: Network, x: Any) -> Any:
    return net.conv(x, 8, groups=8, padding=1)


def product(net: Network, x: Any) -> Any:
    return net.emit(op.matmul(net.emit(op.reshape(x, [72, 8])), net.weight(8, 16)))


def reduction(net: Network, x: Any) -> Any:
    return net.emit(op.max(net.emit(op.multiply(x, relax.const(2.0))), [2]))


def mean(net: Network, x: Any) -> Any:
    return net.emit(op.mean(x, [1, 2]))


def softmax(net: Network, x: Any) -> Any:
    return net.emit(op.nn.softmax(x, 3))


def activation(net: Network, x: Any) -> Any:
    return net.emit(op.nn.relu(x))


def operator(body: Callable[..., Any], kind: str) -> Operator:
    mod = network([(1, 8, 6, 12)], body)
    return next(found for found in extract(prepare(mod, TARGET), TARGET) if kind in found.name)


@pytest.mark.parametrize(
    ("body", "kind", "count"),
    [
        pytest.param(conv, "conv2d", MOST, id="convolution"),
        pytest.param(depthwise, "conv2d", MOST, id="depthwise"),
        pytest.param(product, "matmul", MOST, id="product"),
        pytest.param(reduction, "max", 2, id="reduction"),
        pytest.param(mean, "mean", 2, id="mean"),
        pytest.param(softmax, "softmax", 5, id="rows"),
        pytest.param(activation, "relu", 1, id="anything else"),
    ],
)
def test_they_compute_what_the_operator_does(body: Callable[..., Any], kind: str, count: int) -> None:
    workload = read_workload(operator(body, kind).workload_json)
    search = OperatorSearch(workload, TARGET, seed=1, threads=1)
    found = list(first_candidates(workload, search.spaces, search.postprocs, vector_unit(TARGET)))
    assert 1 <= len(found) <= count
    assert len(found) > 1 or count == 1
    rng = np.random.default_rng(0)
    args = [rng.random(shape, dtype) for _, dtype, shape in args_of(workload)]
    expected = run_kernel(workload.mod, TARGET, *args)
    for sch in (found[0], found[-1]):
        np.testing.assert_allclose(run_kernel(sch.mod, TARGET, *args), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("keeps_sums", "steps"), [(True, 48), (False, 96)])
def test_each_core_computes_rows_of_all_blocks_where_sums_are_kept(*, keeps_sums: bool, steps: int) -> None:
    mod = network([(1, 64, 24, 24)], lambda net, x: net.conv(x, 64, padding=1))
    (found,) = (each for each in extract(prepare(mod, TARGET), TARGET) if "conv2d" in each.name)
    workload = read_workload(found.workload_json)
    search, unit = OperatorSearch(workload, TARGET, seed=1, threads=1), vector_unit(TARGET)
    unit = replace(unit, registers=32, keeps_sums=keeps_sums)
    first = next(first_candidates(workload, search.spaces, search.postprocs, unit))
    args = [np.random.default_rng(0).random(shape, dtype) for _, dtype, shape in args_of(workload)]
    expected, computed = (run_kernel(each, TARGET, *args) for each in (workload.mod, first.mod))
    np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-5)
    assert f"T.parallel(T.int64({steps}), annotations" in first.mod.script()


def test_a_search_begins_with_them_whatever_its_seed() -> None:
    workload = read_workload(operator(conv, "conv2d").workload_json)

    def proposed(seed: int) -> list[str]:
        search = OperatorSearch(workload, TARGET, seed=seed, threads=1)
        return [item["trace"] for item in search.propose(4, lambda trace: trace)]

    assert proposed(1) == proposed(2)
    assert len(set(proposed(1))) == 4


def test_what_the_log_knows_is_not_tried_again() -> None:
    workload = read_workload(operator(conv, "conv2d").workload_json)
    before = OperatorSearch(workload, TARGET, seed=1, threads=1).propose(2, lambda trace: trace)
    search = OperatorSearch(workload, TARGET, seed=1, threads=1)
    search.warm([(item["candidate"], item["trace"], {"cpu:1": 1e-3}) for item in before])
    after = search.propose(4, lambda trace: trace)
    assert not {item["trace"] for item in before} & {item["trace"] for item in after}


@pytest.mark.parametrize("body", [reduction, mean])
def test_a_reduction_begins_with_vectors(body: Callable[..., Any]) -> None:
    workload = read_workload(operator(body, body.__name__.replace("reduction", "max")).workload_json)
    search = OperatorSearch(workload, TARGET, seed=1, threads=1)
    first = next(first_candidates(workload, search.spaces, search.postprocs, vector_unit(TARGET)))
    assert "T.vectorized" in first.mod.script()
    (item,) = search.propose(1, lambda trace: trace)
    assert "T.vectorized" in read_trace(item["trace"], workload).mod.script()


def test_a_long_row_of_no_whole_vectors_is_a_loop_of_its_own() -> None:
    """Vectors over several rows would begin in one row and end in the next."""
    mod = prepare(network([(6, 70)], activation), TARGET)
    (found,) = extract(mod, TARGET)
    workload = read_workload(found.workload_json)
    search = OperatorSearch(workload, TARGET, seed=1, threads=1)
    first = next(first_candidates(workload, search.spaces, search.postprocs, vector_unit(TARGET)))
    assert "in T.parallel(T.int64(6))" in first.mod.script()
    assert "in range(T.int64(70))" in first.mod.script()
    args = [np.random.default_rng(0).normal(size=(6, 70)).astype("float32"), np.zeros((6, 70), "float32")]
    np.testing.assert_array_equal(run_kernel(first.mod, TARGET, *args), np.maximum(args[0], 0))


def test_the_blocks_of_a_tile_are_inside_its_pixels() -> None:
    workload = read_workload(operator(conv, "conv2d").workload_json)
    search = OperatorSearch(workload, TARGET, seed=1, threads=1)
    first = next(first_candidates(workload, search.spaces, search.postprocs, vector_unit(TARGET)))
    sch = Schedule(workload.mod)
    names = [sch.get(loop).loop_var.name for loop in sch.get_loops(sch.get_sblock("conv2d_blocked"))]
    _, k, y, x = names[:4]
    assert f"{y}_3, {x}_3, {k}_3 in T.grid" in first.mod.script()


def test_half_vectors_of_zen_4_are_tiled_as_vectors_of_their_own() -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
    mod = prepare(network([(1, 24, 6, 12)], lambda net, x: net.emit(op.nn.relu(net.conv(x, 24)))), target)
    workload = read_workload(next(each for each in extract(mod, target) if "conv2d" in each.name).workload_json)
    unit = unit_for(workload.mod, vector_unit(target))
    assert unit == VectorUnit(8, 32, 2)
    search = OperatorSearch(workload, target, seed=1, threads=1)
    script = next(first_candidates(workload, search.spaces, search.postprocs, unit)).mod.script()
    widths = re.findall(r"T\.vectorized\((?:T\.int64\()?(\d+)", script)
    assert set(widths) == {"8"}


def test_a_reduction_over_blocks_of_half_a_vector_is_one_of_vectors() -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
    mod = prepare(network([(1, 9, 3, 8)], lambda net, x: net.emit(op.mean(x, [1, 2]))), target)
    workload = read_workload(next(each for each in extract(mod, target) if "mean" in each.name).workload_json)
    search = OperatorSearch(workload, target, seed=1, threads=1)
    first = next(first_candidates(workload, search.spaces, search.postprocs, vector_unit(target)))
    assert len(re.findall(r"T\.vectorized\((?:T\.int64\()?8", first.mod.script())) >= 2


@pytest.mark.parametrize(("side", "once"), [(100, True), (40, False)])
def test_an_image_beyond_the_second_cache_is_read_once_for_all_blocks(side: int, *, once: bool) -> None:
    mod = prepare(network([(1, 64, side, side)], lambda net, x: net.emit(op.nn.relu(net.conv(x, 64, 1)))), TARGET)
    workload = read_workload(next(each for each in extract(mod, TARGET) if "conv2d" in each.name).workload_json)
    search = OperatorSearch(workload, TARGET, seed=1, threads=1)
    first = next(first_candidates(workload, search.spaces, search.postprocs, vector_unit(TARGET)))
    _, (_, blocks), *_ = first.trace.as_json()[1]
    assert (int(blocks[1]) > 1) == once


# ---- Winograd's design space: its steps are fused, and every schedule computes the same


def bare(net: Network, x: Any) -> Any:
    return net.conv(x, 8, padding=1)


def activated(net: Network, x: Any) -> Any:
    return net.emit(op.nn.relu(net.emit(op.add(net.conv(x, 8, padding=1), net.weight(1, 8, 1, 1)))))


def residual(net: Network, x: Any) -> Any:
    return net.emit(op.nn.relu(net.emit(op.add(net.conv(x, 8, padding=1), net.conv(x, 8, 1)))))


def read_twice(net: Network, x: Any) -> Any:
    made = net.conv(x, 8, padding=1)
    return net.emit(op.multiply(made, net.emit(op.clip(net.emit(op.add(made, relax.const(3.0))), 0.0, 6.0))))


def out_of_blocks(net: Network, x: Any) -> Any:
    return net.emit(op.permute_dims(net.conv(x, 8, padding=1), [0, 2, 3, 1]))


def winograd_of(body: Callable[..., Any], name: str, shape: tuple[int, ...] = (2, 8, 9, 13)) -> Any:
    found = extract(prepare(network([shape], body), TARGET, name), TARGET)
    workloads = (read_workload(each.workload_json) for each in found)
    return next(workload for workload in workloads if is_winograd(workload.mod))


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (bare, "winograd2"),
        (activated, "winograd4"),
        (residual, "winograd2"),
        (read_twice, "winograd4"),
        (out_of_blocks, "winograd2"),
    ],
)
def test_candidates_of_winograd_compute_what_the_operator_does(body: Callable[..., Any], name: str) -> None:
    workload = winograd_of(body, name)
    search = OperatorSearch(workload, TARGET, seed=1, threads=1)
    traces = [item["trace"] for item in search.propose(2, lambda trace: trace)]
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(shape).astype(dtype) for _, dtype, shape in args_of(workload)]
    expected = run_kernel(workload.mod, TARGET, *args)
    for trace in traces:
        mod = read_trace(trace, workload).mod
        np.testing.assert_allclose(
            run_kernel(mod, TARGET, *args), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()
        )


def test_a_search_goes_on_in_winograds_space() -> None:
    """Beyond the first candidates it draws."""
    search = OperatorSearch(winograd_of(activated, "winograd2"), TARGET, seed=1, threads=1)
    traces = [item["trace"] for item in search.propose(24, lambda trace: trace)]
    assert len(set(traces)) == 24


def test_what_is_element_wise_is_part_of_the_output() -> None:
    """A chunk's products are summed, and leave as the operator's output: no stage writes the whole of them."""
    workload = winograd_of(activated, "winograd4", (1, 8, 12, 12))
    search = OperatorSearch(workload, TARGET, seed=1, threads=1)
    first = next(first_candidates(workload, search.spaces, search.postprocs, vector_unit(TARGET)))
    blocks = [str(first.get(each).name_hint) for each in first.get_child_blocks(first.get_sblock("root"))]
    assert blocks[-1] == "winograd_output"
    assert not {"T_add", "compute"}.intersection(blocks)


@pytest.mark.parametrize(("channels", "side", "whole"), [(8, 8, False), (512, 8, True), (512, 128, False)])
def test_many_weights_are_read_once(channels: int, side: int, *, whole: bool) -> None:
    """Then a chunk has all rows of tiles. The sums of a large image would go to memory meanwhile."""

    def body(net: Network, x: Any) -> Any:
        return net.conv(x, channels, padding=1)

    workload = winograd_of(body, "winograd2", (1, channels, side, side))
    _, (_, rows, _) = next(first_tiles(workload.mod, 16))
    assert (rows[0] == 1) == whole
