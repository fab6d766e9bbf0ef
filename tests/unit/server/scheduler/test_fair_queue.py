"""Whose turn it is, asserted on measurements handed out."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from fractune_core.jobs import Priority
from fractune_server.scheduler.fair_queue import Claimant, FairQueue

MOST = 128
"""measurements of one round at most"""


def served(queue: FairQueue, claimants: Mapping[Claimant, int], rounds: int) -> Counter[str]:
    """Measurements by job, when each of them takes rounds of this size as long as they get one."""
    got: Counter[str] = Counter()
    for _ in range(rounds):
        first = min(claimants, key=queue.sort_key)
        queue.charge(first, claimants[first], scheduled=True)
        got[first.job] += claimants[first]
    return got


@given(st.integers(1, MOST), st.integers(1, MOST), st.integers(1, 200))
def test_equal_jobs_get_equal_parts_whatever_their_rounds(one: int, other: int, rounds: int) -> None:
    got = served(FairQueue(), {Claimant("a", "t"): one, Claimant("b", "t", since=1.0): other}, rounds)
    assert abs(got["a"] - got["b"]) <= max(one, other)


def test_tenants_get_equal_parts_whatever_the_number_of_their_jobs() -> None:
    many = {Claimant(f"m{number}", "many", since=number): 8 for number in range(5)}
    got = served(FairQueue(), {**many, Claimant("o", "one"): 8}, 100)
    assert got["o"] == 400
    assert {got[each.job] for each in many} == {80}


@pytest.mark.parametrize("tenants", [("t", "t", "t"), ("a", "b", "c")])
def test_priorities_are_weights_and_low_is_never_left_out(tenants: tuple[str, str, str]) -> None:
    jobs = zip(Priority, tenants, strict=True)
    got = served(FairQueue(), {Claimant(each.value, tenant, each.weight): 8 for each, tenant in jobs}, 21 * 4)
    assert got == {"low": 4 * 8, "normal": 4 * 4 * 8, "high": 4 * 16 * 8}


@pytest.mark.parametrize("tenant", ["t", "another"])
def test_a_newcomer_goes_before_those_who_were_given_much_and_no_further(tenant: str) -> None:
    queue, old, new = FairQueue(), Claimant("old", "t"), Claimant("new", tenant, since=9.0)
    assert served(queue, {old: 64}, 30) == {"old": 30 * 64}
    assert queue.is_behind(new, old)
    assert not queue.is_behind(old, new)
    first = served(queue, {old: 64, new: 8}, 8)
    assert first == {"new": 64}, "until it has had as much as the round that the old one has under way"
    both = served(queue, {old: 64, new: 8}, 9 * 10)
    assert abs(both["old"] - both["new"]) <= 64


def test_who_could_take_nothing_for_a_while_has_saved_nothing_up() -> None:
    queue, idle, other = FairQueue(), Claimant("idle", "t"), Claimant("other", "u")
    queue.charge(idle, 8, scheduled=True)
    served(queue, {other: 8}, 1000)
    got = served(queue, {idle: 8, other: 8}, 100)
    assert abs(got["idle"] - got["other"]) <= 16


def test_what_was_not_given_in_turn_is_paid_all_the_same() -> None:
    queue, finals, other = FairQueue(), Claimant("finals", "t"), Claimant("other", "u")
    queue.charge(finals, 80, scheduled=False)
    assert served(queue, {finals: 8, other: 8}, 10) == {"other": 80}


def test_a_tenant_is_not_ahead_again_because_its_job_has_ended() -> None:
    queue, other = FairQueue(), Claimant("other", "u")
    queue.charge(Claimant("first", "t"), 80, scheduled=True)
    queue.keep([other])
    second = Claimant("second", "t")
    assert served(queue, {second: 8, other: 8}, 10) == {"other": 80}


def test_the_older_of_equal_jobs_is_first_and_the_weightier_before_it() -> None:
    queue = FairQueue()
    jobs = [Claimant("young", "t", since=2.0), Claimant("old", "t", since=1.0), Claimant("high", "t", 16, 3.0)]
    assert [each.job for each in sorted(jobs, key=queue.sort_key)] == ["high", "old", "young"]


def test_tenants_share_by_their_weights_whatever_the_number_and_priority_of_their_jobs() -> None:
    queue = FairQueue()
    queue.set_weights({"a": 3})
    many = {Claimant(f"b{number}", f"t{number}", 16, tenant="b"): 8 for number in range(4)}
    got = served(queue, {Claimant("a", "t", tenant="a"): 8, **many}, 80)
    assert got["a"] == 60 * 8
    assert [got[each.job] for each in many] == [5 * 8] * 4


def test_tokens_of_a_tenant_share_its_part_evenly() -> None:
    one = {Claimant(f"o{number}", "one", since=number, tenant="a"): 8 for number in range(3)}
    got = served(FairQueue(), {**one, Claimant("o", "two", tenant="a"): 8, Claimant("b", "t", tenant="b"): 8}, 120)
    assert (got["b"], got["o"], {got[each.job] for each in one}) == (480, 240, {80})
