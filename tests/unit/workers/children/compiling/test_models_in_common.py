"""A trace that was tuned for one model applies to every other one that shares the workload."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

import pytest

from fractune_workers.children.compiling.variants import compile_variants
from fractune_workers.children.importing.passes import direct_hash, extract, prepare
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.children.tvm_api.traces import Workload, read_trace, read_workload
from tests.support.models_in_common import MODELS, shared_model

TARGET = parse_target("llvm -mcpu=x86-64-v3", 1)
SHARED = 5
"""operators that all models have"""
CANDIDATES = 2
PAIRS = list(permutations(range(len(MODELS)), 2))
EACH_ONCE = [(0, 5), (6, 3), (2, 7), (4, 1)]
"""each model in one pair, from both halves, which clamp otherwise"""


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


@pytest.mark.parametrize(
    ("one", "other"), [pair if pair in EACH_ONCE else pytest.param(*pair, marks=pytest.mark.long) for pair in PAIRS]
)
def test_a_trace_makes_the_same_schedule_in_both_models(one: int, other: int) -> None:
    for name, traces in tuned(one).items():
        for trace in traces:
            made, here = (read_trace(trace, workloads(number)[name]).mod for number in (one, other))
            assert direct_hash(made) == direct_hash(here)


def test_models_are_compiled_with_the_schedules_of_others() -> None:
    """One from each half, in both orders."""
    for one, other in ((0, 6), (6, 0)):
        schedules = {workloads(other)[name]: traces[-1] for name, traces in tuned(one).items()}
        assert compile_variants([prepared(other)], TARGET, [schedules], {})


@pytest.mark.long
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_each_model_is_compiled_with_the_schedules_of_each_other(one: int, other: int) -> None:
    schedules = {workloads(other)[name]: traces[-1] for name, traces in tuned(one).items()}
    assert compile_variants([prepared(other)], TARGET, [schedules], {})
