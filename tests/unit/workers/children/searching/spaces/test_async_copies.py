"""Asynchronous copies are a decision of the search for a GPU."""

from __future__ import annotations

import json

import pytest
import tvm
from tvm import te

from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.tvm_api.functions import ASYNC_COPIES
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.children.tvm_api.traces import Workload, read_trace


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
