"""Reductions of rows: schedules with vectors that compute the same, and the operators that they are for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.searching.spaces.rows import row_shape
from fractune_workers.children.tvm_api.traces import args_of, read_trace, read_workload
from tests.support.unoptimized import run_kernel
from tests.unit.workers.children.layouts.networks import Network, network

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2})
LANES = 4
op = relax.op


def softmax(net: Network, x: Any) -> Any:
    return net.emit(op.nn.softmax(x))


def log_softmax(net: Network, x: Any) -> Any:
    return net.emit(op.nn.log_softmax(x))


def rounded_softmax(net: Network, x: Any) -> Any:
    value = net.emit(op.round(net.emit(op.multiply(softmax(net, x), relax.const(64.0)))))
    return net.emit(op.where(net.emit(op.isnan(value)), relax.const(0.0), value))


def layer_norm(net: Network, x: Any) -> Any:
    columns = int(x.ty.shape[-1])
    return net.emit(op.nn.layer_norm(x, net.weight(columns), net.weight(columns), axes=[-1]))


def rms_norm(net: Network, x: Any) -> Any:
    return net.emit(op.nn.rms_norm(x, net.weight(int(x.ty.shape[-1])), axes=[-1]))


def mean(net: Network, x: Any) -> Any:
    return net.emit(op.mean(x, [-1], keepdims=True))


def largest(net: Network, x: Any) -> Any:
    return net.emit(op.max(x, [-1]))


def workload_of(body: Callable[..., Any], shape: tuple[int, ...]) -> Any:
    (found,) = extract(prepare(network([shape], body), TARGET), TARGET)
    return read_workload(found.workload_json)


@pytest.mark.parametrize("body", [softmax, log_softmax, rounded_softmax, layer_norm, rms_norm, mean, largest])
@pytest.mark.parametrize("shape", [(2, 3, 24), pytest.param((1, 40), marks=pytest.mark.long)])
def test_computed_and_drawn_schedules_compute_the_same(body: Callable[..., Any], shape: tuple[int, ...]) -> None:
    workload = workload_of(body, shape)
    assert row_shape(workload.mod, LANES) == (int(np.prod(shape[:-1])), shape[-1] // LANES)
    search = OperatorSearch(workload, TARGET, seed=1, threads=1)
    traces = [item["trace"] for item in search.propose(8, lambda trace: trace)]
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(shape).astype(dtype) for _, dtype, shape in args_of(workload)]
    expected = run_kernel(workload.mod, TARGET, *args)
    assert np.ptp(expected) > 0 or expected.size == 1
    for trace in (traces[0], traces[-1]):
        sch = read_trace(trace, workload)
        assert "T.vectorized" in sch.mod.script()
        np.testing.assert_allclose(run_kernel(sch.mod, TARGET, *args), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("body", [softmax, log_softmax])
def test_rows_of_odd_lengths_are_filled_up(body: Callable[..., Any]) -> None:
    """Also where numbers are the smallest, infinite, or none."""
    workload = workload_of(body, (5, 37))
    assert row_shape(workload.mod, LANES) == (5, 48 // LANES)
    (item,) = OperatorSearch(workload, TARGET, seed=1, threads=1).propose(1, lambda trace: trace)
    given = np.random.default_rng(0).standard_normal((5, 37)).astype("float32")
    given[1] = np.finfo("float32").min
    given[2, ::2], given[3], given[4, 0] = -np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        above = given - given.max(-1, keepdims=True)
        powers = np.exp(above)
        total = powers.sum(-1, keepdims=True)
        expected = powers / total if body is softmax else above - np.log(total)
    found = run_kernel(read_trace(item["trace"], workload).mod, TARGET, given, np.empty_like(given))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        pytest.param(lambda net, x: net.emit(op.max(x, [1])), (2, 8, 16), id="another axis"),
        pytest.param(lambda net, x: net.emit(op.mean(x, [1, 2])), (2, 8, 16), id="two axes"),
        pytest.param(lambda net, x: net.emit(op.matmul(x, net.weight(16, 8))), (8, 16), id="a product"),
        pytest.param(lambda net, x: net.emit(op.nn.relu(x)), (8, 16), id="no reduction"),
        pytest.param(softmax, (8, 17), id="no whole vectors"),
    ],
)
def test_other_operators_keep_their_space(body: Callable[..., Any], shape: tuple[int, ...]) -> None:
    operators = extract(prepare(network([shape], body), TARGET), TARGET)
    workloads = [read_workload(operator.workload_json) for operator in operators]
    assert [row_shape(workload.mod, LANES) for workload in workloads] == [None] * len(workloads)


@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("body", [softmax, layer_norm, lambda net, x: net.emit(op.nn.gelu(x))])
def test_the_code_calls_no_library(body: Callable[..., Any], cpu: str) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2})
    (found,) = extract(prepare(network([(8, 64)], body), target), target)
    workload = read_workload(found.workload_json)
    (item,) = OperatorSearch(workload, target, seed=1, threads=1).propose(1, lambda trace: trace)
    code = tvm.compile(read_trace(item["trace"], workload).mod, target).mod.inspect_source("asm")
    assert ("zmm" if cpu == "x86-64-v4" else "ymm") in code
    assert not [name for name in ("expf", "erff", "tanhf", "powf", "sqrtf@") if name in code]
