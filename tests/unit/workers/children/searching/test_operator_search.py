"""The searcher's child: what is proposed first, and that nothing is proposed twice."""

from __future__ import annotations

import json

import pytest
import tvm
from tvm import te, topi

from fractune_core.implementations import DIRECT
from fractune_workers.children.importing.passes import Operator, _operator
from fractune_workers.children.searching.child import SearcherChild
from fractune_workers.children.searching.operator_search import _Fastest, _Trial
from fractune_workers.children.searching.sketches import sketches_of
from fractune_workers.children.searching.transfer import adapt
from fractune_workers.children.tvm_api.target import parse_target

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET = json.dumps({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


def matmul(rows: int) -> Operator:
    a, b = te.placeholder((rows, 24), name="a"), te.placeholder((24, 32), name="b")
    return _operator("matmul", 1, tvm.IRModule({"main": te.create_prim_func([a, b, topi.matmul(a, b)])}))


def opened(child: SearcherChild, operator: Operator, transferred: list[str]) -> None:
    child.open(operator.workload_hash, operator.workload_json, TARGET, "key", "", 5, [], transferred)


def proposed(child: SearcherChild, operator: Operator, count: int) -> list[str]:
    return [item["trace"] for item in child.propose(operator.workload_hash, "key", "", count)]


@pytest.fixture
def child() -> SearcherChild:
    return SearcherChild(threads=1)


def test_transferred_schedules_are_tried_in_turn_with_computed_ones_and_only_once(child: SearcherChild) -> None:
    donor, receiver = matmul(16), matmul(48)
    opened(child, donor, [])
    transferred = proposed(child, donor, 4)
    opened(child, receiver, transferred)
    first = proposed(child, receiver, 8)
    search = child._operators[receiver.workload_hash, "key", ""].search_of(DIRECT)
    space = sketches_of(search.spaces), search.postprocs
    adapted = [adapt(trace, search._workload.mod, *space) for trace in transferred]
    assert len(first) == 8
    wanted = list(dict.fromkeys(str(sch.mod) for sch in adapted if sch is not None))
    assert wanted
    begun = [str(sch.mod) for sch in search._pending.values()]
    assert [mod for mod in begun[: 2 * len(wanted)] if mod in wanted] == wanted
    assert begun[0] not in wanted
    assert not set(proposed(child, receiver, 8)) & set(first)


def test_with_nothing_transferred_it_samples(child: SearcherChild) -> None:
    operator = matmul(16)
    opened(child, operator, [])
    first, second = proposed(child, operator, 6), proposed(child, operator, 6)
    assert len({*first, *second}) == 12


def test_an_evolution_begins_once_a_round_was_measured(child: SearcherChild) -> None:
    operator = matmul(64)
    opened(child, operator, [])
    search = child._operators[operator.workload_hash, "key", ""].search_of(DIRECT)
    first = child.propose(operator.workload_hash, "key", "", 8)
    assert not search._returned
    results = [(item["candidate"], "cpu:1", 1e-3 * (1 + at)) for at, item in enumerate(first)]
    child.learn(operator.workload_hash, "key", "", results, ["cpu:1"])
    second = proposed(child, operator, 16)
    assert search._returned
    assert len(set(second)) == 16
    assert not {item["trace"] for item in first} & set(second)


def test_a_round_for_a_gpu_is_full_though_most_samples_do_not_fit_a_block(child: SearcherChild) -> None:
    operator = matmul(64)
    child.open(operator.workload_hash, operator.workload_json, str(parse_target("cuda:sm_90", 1)), "key", "", 5, [], [])
    first = child.propose(operator.workload_hash, "key", "", 8)
    results = [(item["candidate"], "mps:25", 1e-3 * (1 + at)) for at, item in enumerate(first)]
    child.learn(operator.workload_hash, "key", "", results, ["mps:25"])
    second = child.propose(operator.workload_hash, "key", "", 8)
    assert len({item["trace"] for item in (*first, *second)}) == 16


def test_the_fastest_are_kept_in_order() -> None:
    fastest = _Fastest(2)
    for name, secs in (("slow", 3.0), ("fast", 1.0), ("as fast", 1.0), ("faster", 0.5)):
        fastest.add(_Trial({}, name), secs)
    assert fastest.schedules() == ["faster", "fast"]
