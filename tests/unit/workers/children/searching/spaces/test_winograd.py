"""Winograd's design space: what is fused is fused, any schedule computes the same, and the first ones are sensible."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.searching.spaces.first_candidates import first_candidates
from fractune_workers.children.searching.spaces.winograd import first_tiles, is_winograd
from fractune_workers.children.tvm_api.target import vector_unit
from fractune_workers.children.tvm_api.traces import args_of, read_trace, read_workload
from tests.support.unoptimized import run_kernel
from tests.unit.workers.children.layouts.networks import Network, network

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2})
op = relax.op


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


def workload_of(body: Callable[..., Any], name: str, shape: tuple[int, ...] = (2, 8, 9, 13)) -> Any:
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
def test_candidates_compute_what_the_operator_does(body: Callable[..., Any], name: str) -> None:
    workload = workload_of(body, name)
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


def test_a_search_goes_on_in_the_space() -> None:
    """Beyond the first candidates it draws."""
    search = OperatorSearch(workload_of(activated, "winograd2"), TARGET, seed=1, threads=1)
    traces = [item["trace"] for item in search.propose(24, lambda trace: trace)]
    assert len(set(traces)) == 24


def test_what_is_element_wise_is_part_of_the_output() -> None:
    """A chunk's products are summed, and leave as the operator's output: no stage writes the whole of them."""
    workload = workload_of(activated, "winograd4", (1, 8, 12, 12))
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

    workload = workload_of(body, "winograd2", (1, channels, side, side))
    _, (_, rows, _) = next(first_tiles(workload.mod, 16))
    assert (rows[0] == 1) == whole
