"""A trace that was tuned for one model applies to every other one that shares the workload."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from functools import cache
from itertools import permutations
from typing import Any

import pytest

from fractune_core.tir.lookups import by_position
from fractune_workers.children.compiling.variants import compile_variants
from fractune_workers.children.importing.passes import extract, prepare, workload_hash
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.children.tvm_api.traces import Workload, read_trace, read_workload
from tests.support.models_in_common import MODELS, shared_model
from tests.support.paths import REPOSITORY

TARGET = parse_target("llvm -mcpu=x86-64-v3", 1)
SHARED = 5
"""operators that all models have"""
CANDIDATES = 4
PAIRS = list(permutations(range(len(MODELS)), 2))
RING = [(number, (number + 1) % len(MODELS)) for number in range(len(MODELS))]
"""each model once as the one that was tuned, and once as the other one"""
OLD = REPOSITORY / "tests" / "assets" / "model_names" / "operators.jsonl.gz"


@cache
def prepared(number: int) -> Any:
    return prepare(shared_model(MODELS[number]), TARGET)


@cache
def workloads(number: int) -> dict[str, Workload]:
    """By workload hash, those that the other models share."""
    found = {each.workload_hash: read_workload(each.workload_json) for each in extract(prepared(number), TARGET)}
    assert not number or len(found.keys() & workloads(0).keys()) == SHARED
    return {name: found[name] for name in found if not number or name in workloads(0)}


@cache
def tuned(number: int) -> dict[str, list[str]]:
    """Traces by workload hash, of a search for the model."""
    searches = {name: OperatorSearch(each, TARGET, 1, 1) for name, each in workloads(number).items()}
    return {name: [item["trace"] for item in each.propose(CANDIDATES, str)] for name, each in searches.items()}


def old_operators() -> dict[str, list[dict[str, Any]]]:
    """As an older version wrote them: by workload hash, of each of two models."""
    found = defaultdict(list)
    for line in gzip.decompress(OLD.read_bytes()).decode().splitlines():
        operator = json.loads(line)
        found[operator["workload_hash"]].append(operator)
    assert all(len(each) == len({operator["model"] for operator in each}) == 2 for each in found.values())
    return found


@pytest.mark.parametrize(
    ("one", "other"), [pair if pair in RING else pytest.param(*pair, marks=pytest.mark.long) for pair in PAIRS]
)
def test_a_trace_makes_the_same_schedule_in_both_models(one: int, other: int) -> None:
    for name, traces in tuned(one).items():
        for trace in traces:
            made, here = (read_trace(trace, workloads(number)[name]).mod for number in (one, other))
            assert workload_hash(made) == workload_hash(here)


def test_models_are_compiled_with_the_schedules_of_others() -> None:
    """One from each half, which clamp otherwise, in both orders."""
    for one, other in ((0, 6), (6, 0)):
        schedules = {workloads(other)[name]: traces[-1] for name, traces in tuned(one).items()}
        assert compile_variants([prepared(other)], TARGET, [schedules], {})


@pytest.mark.long
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_each_model_is_compiled_with_the_schedules_of_each_other(one: int, other: int) -> None:
    schedules = {workloads(other)[name]: traces[-1] for name, traces in tuned(one).items()}
    assert compile_variants([prepared(other)], TARGET, [schedules], {})


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 0)])
def test_old_traces_make_the_same_schedule_in_both_models(one: int, other: int) -> None:
    of_cpu = [both for both in old_operators().values() if both[0]["target"].startswith("llvm")]
    assert len(of_cpu) == SHARED
    for both in of_cpu:
        own, their = (read_workload(both[number]["workload"]) for number in (one, other))
        for trace in both[one]["traces"]:
            made, here = (read_trace(trace, each).mod for each in (own, their))
            assert workload_hash(made) == workload_hash(here)


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 0)])
def test_old_traces_mean_the_same_blocks_in_both_models(one: int, other: int) -> None:
    """For a GPU's tensor cores too, whose schedules look up blocks that are named after buffers."""
    for both in old_operators().values():
        own, their = (read_workload(both[number]["workload"]).names for number in (one, other))
        for trace in map(json.loads, both[one]["traces"]):
            assert by_position(trace, own) == by_position(trace, their)
