"""How the implementations of one operator share its trials."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import tvm

from fractune_core.operators import DIRECT, WINOGRAD2, implementation_of, trace_of
from fractune_workers.children.compiling.implementations import hashes_of, implementations_of
from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.searching.child import CompetingSearches
from fractune_workers.children.tvm_api.traces import read_workload
from tests.unit.workers.children.layouts.networks import network

pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})
SHARE = "cpu:1"


@pytest.fixture(scope="module")
def workloads() -> dict[str, Any]:
    return competing(network([(1, 16, 8, 8)], lambda net, x: net.conv(x, 16, padding=1)))


def competing(mod: tvm.IRModule) -> dict[str, Any]:
    """Of its one convolution, the direct one and Winograd's."""
    direct, other = prepare(mod, TARGET), prepare(mod, TARGET, WINOGRAD2)
    ((name, winograd),) = implementations_of(direct, other, hashes_of(direct)).items()
    operator = next(each for each in extract(direct, TARGET) if each.workload_hash == name)
    return {DIRECT: read_workload(operator.workload_json), WINOGRAD2: winograd}


@pytest.fixture
def searches(workloads: dict[str, Any]) -> CompetingSearches:
    return CompetingSearches(workloads, TARGET, seed=1, threads=1)


def proposed(
    searches: CompetingSearches, count: int, *, exact: bool = False, lost: Sequence[str] = ()
) -> list[dict[str, str]]:
    return searches.propose(count, lambda text: f"c{hash(text)}", exact=exact, lost=lost)


def parts(items: list[dict[str, str]]) -> Counter[str]:
    return Counter(implementation_of(item["trace"]) for item in items)


def learn(searches: CompetingSearches, items: list[dict[str, str]], secs: dict[str, float]) -> None:
    told = [(item["candidate"], SHARE, secs[implementation_of(item["trace"])]) for item in items]
    searches.learn(told, [SHARE])


def test_as_long_as_nothing_is_known_they_take_turns(searches: CompetingSearches) -> None:
    items = proposed(searches, 8)
    assert parts(items) == {DIRECT: 4, WINOGRAD2: 4}
    assert all(item["candidate"] == f"c{hash(item['trace'])}" for item in items)
    assert all(json.loads(trace_of(item["trace"])) for item in items)


@pytest.mark.parametrize("fast", [DIRECT, WINOGRAD2])
def test_the_faster_one_gets_most_and_the_other_some(
    searches: CompetingSearches, fast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(searches, proposed(searches, 8), {DIRECT: 2.0, WINOGRAD2: 2.0, fast: 1.0})
    for search in searches._searches.values():
        monkeypatch.setattr(search, "propose", lambda count, _name: [{"candidate": "", "trace": "[]"}] * count)
    second = parts(proposed(searches, 32))
    assert second[fast] >= 28
    assert second.total() == 32
    (slow,) = {DIRECT, WINOGRAD2} - {fast}
    assert second[slow] + parts(proposed(searches, 32))[slow] > 0


def test_one_whose_candidates_all_failed_gets_few(searches: CompetingSearches) -> None:
    learn(searches, proposed(searches, 8), {DIRECT: 1.0, WINOGRAD2: 0.0})
    assert parts(proposed(searches, 16))[DIRECT] >= 14


def test_exact_leaves_out_what_rounds_otherwise(searches: CompetingSearches) -> None:
    assert parts(proposed(searches, 8, exact=True)) == {DIRECT: 8}


def test_what_was_measured_before_is_each_ones_own(searches: CompetingSearches, workloads: dict[str, Any]) -> None:
    items = proposed(searches, 12)
    secs = {DIRECT: 2.0, WINOGRAD2: 1.0}
    again = CompetingSearches(workloads, TARGET, seed=1, threads=1)
    again.warm((item["candidate"], item["trace"], {SHARE: secs[implementation_of(item["trace"])]}) for item in items)
    again.learn([], [SHARE])
    following = proposed(again, 12)
    assert not {item["trace"] for item in items} & {item["trace"] for item in following}
    assert parts(following)[WINOGRAD2] >= 10


def test_what_another_operator_had_is_tried_in_the_same_implementation(
    searches: CompetingSearches, workloads: dict[str, Any]
) -> None:
    donated = proposed(searches, 8)
    receiver = CompetingSearches(workloads, TARGET, seed=2, threads=1)
    receiver.transfer(item["trace"] for item in donated)
    first = {item["trace"] for item in proposed(receiver, 8)}
    for name in (DIRECT, WINOGRAD2):
        assert first & {item["trace"] for item in donated if implementation_of(item["trace"]) == name}


def test_an_operator_with_one_implementation_names_none(workloads: dict[str, Any]) -> None:
    searches = CompetingSearches({DIRECT: workloads[DIRECT]}, TARGET, seed=1, threads=1)
    assert parts(proposed(searches, 4)) == {DIRECT: 4}


@pytest.mark.parametrize(("channels", "size", "first"), [(128, 16, WINOGRAD2), (16, 1, DIRECT)])
def test_the_likeliest_one_has_the_first_turn(channels: int, size: int, first: str) -> None:
    """Winograd's where much is multiplied for each pixel, the direct one where a tile would be mostly padding."""
    mod = network([(1, channels, size, size)], lambda net, x: net.conv(x, channels, padding=1))
    searches = CompetingSearches(competing(mod), TARGET, seed=1, threads=1)
    assert list(parts(proposed(searches, 1))) == [first]


def test_what_was_lost_is_proposed_again_first_and_once(searches: CompetingSearches) -> None:
    items = proposed(searches, 8)
    learn(searches, items[:4], {DIRECT: 1.0, WINOGRAD2: 1.0})
    lost = [*(item["candidate"] for item in items[2:6]), "never proposed"]
    again = {item["trace"] for item in proposed(searches, 4, lost=lost)} & {item["trace"] for item in items}
    assert again == {item["trace"] for item in items[4:6]}
    assert not {item["trace"] for item in proposed(searches, 8)} & {item["trace"] for item in items}
