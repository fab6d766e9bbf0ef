"""Budgets, rounds and validations: decisions without I/O."""

import math
from dataclasses import replace

from hypothesis import given, strategies as st

from fractune_core.records import Status
from fractune_server.scheduler import allocation
from fractune_server.scheduler.allocation import FIRST_ROUND, Budget, OperatorPlan, joint_times, next_round
from fractune_server.scheduler.finalists import BEST_PER_SHARE, finalists
from tests.support.samples import validation

SHARES = ("cpu/1of2core", "cpu/2of2core")


def plan(name: str, weight: int = 1, trials: int = 0, secs: float = 1.0) -> OperatorPlan:
    made = OperatorPlan(name, weight, SHARES)
    for index in range(trials):
        for share in SHARES:
            made.add_trial(f"{name}{index}", share, secs)
    return made


@given(
    trials=st.integers(0, 2000),
    round_size=st.integers(1, 64),
    held=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 300)), min_size=1, max_size=40),
)
def test_a_job_makes_what_was_planned_and_a_second_one_nothing(
    trials: int, round_size: int, held: list[tuple[int, int]]
) -> None:
    plans = [plan(f"op{i}_", weight, 0) for i, (weight, _) in enumerate(held)]
    for each, (_, count) in zip(plans, held, strict=True):
        each.complete = count
    limits = Budget(trials, 0, round_size)
    planned = limits.remaining(plans, 0)
    assert planned == allocation.remaining(trials, [count for _, count in held])
    made = 0
    while (found := next_round(plans, limits, made)) is not None:
        chosen, count = found
        assert 1 <= count <= round_size
        chosen.complete += count
        made += count
    assert made == planned <= max(trials, len(plans))
    low, high = allocation.minimum(trials, len(plans)), allocation.cap(trials, len(plans))
    for each, (_, count) in zip(plans, held, strict=True):
        assert low <= each.complete <= max(high, count)
    assert limits.remaining(plans, made) == 0


@given(
    trials=st.integers(1, 2000),
    round_size=st.integers(1, 64),
    spaces=st.lists(st.integers(0, 100), min_size=1, max_size=40),
)
def test_operators_with_few_candidates_owe_nothing_once_exhausted(
    trials: int, round_size: int, spaces: list[int]
) -> None:
    """`spaces` = candidates that there are of each operator."""
    plans = [plan(f"op{i}") for i in range(len(spaces))]
    limits = Budget(trials, 0, round_size)
    made = 0
    while (found := next_round(plans, limits, made)) is not None:
        chosen, count = found
        got = min(count, spaces[plans.index(chosen)] - chosen.complete)
        chosen.exhausted = got < count
        chosen.complete += got
        made += got
    assert made <= max(trials, len(plans)), "every operator gets one"
    high = allocation.cap(trials, len(plans))
    assert made >= trials or all(each.exhausted or each.complete >= high for each in plans)


@given(more=st.integers(1, 500), round_size=st.integers(1, 64), operators=st.integers(1, 30))
def test_more_goes_on_whatever_the_log_holds(more: int, round_size: int, operators: int) -> None:
    plans = [plan(f"op{i}_") for i in range(operators)]
    for each in plans:
        each.complete = 10_000
    limits = Budget(1, more, round_size)
    made = 0
    while (found := next_round(plans, limits, made)) is not None:
        made += found[1]
    assert made == more


def test_first_every_operator_to_its_minimum_the_heavy_ones_first() -> None:
    plans = [plan("light", 1), plan("heavy", 9)]
    limits = Budget(4 * FIRST_ROUND, 0, 16)
    first = next_round(plans, limits, 0)
    assert first is not None
    assert (first[0].workload_hash, first[1]) == ("heavy", FIRST_ROUND)
    plans[1].busy, plans[1].in_flight = True, FIRST_ROUND
    second = next_round(plans, limits, 0)
    assert second is not None
    assert (second[0].workload_hash, second[1]) == ("light", FIRST_ROUND)
    plans[0].busy, plans[0].in_flight = True, FIRST_ROUND
    assert next_round(plans, limits, 0) is None


def test_what_operators_lack_that_others_search_now_stays_for_them() -> None:
    plans = [plan("a", 2, trials=4), plan("b", 1, trials=4), plan("busy", 1)]
    plans[2].busy = True
    limits, made = Budget(24, 0, 64), 8
    while (found := next_round(plans, limits, made)) is not None:
        chosen, count = found
        chosen.complete += count
        made += count
    assert made == 24 - 4
    plans[2].busy = False
    assert next_round(plans, limits, made) == (plans[2], 4)


def test_rounds_begin_small_and_grow_up_to_the_size_of_a_round() -> None:
    only = plan("only")
    sizes = []
    for _ in range(9):
        found = next_round([only], Budget(1, 1000, 30), only.complete)
        assert found is not None
        sizes.append(found[1])
        only.complete += found[1]
    assert sizes == [8, 8, 8, 12, 18, 27, 30, 30, 30]


def test_the_larger_expected_saving_goes_next_and_gains_decide_once_known() -> None:
    slow, fast = plan("slow", 1, trials=8, secs=2.0), plan("fast", 1, trials=8, secs=1.0)
    limits = Budget(32, 0, 8)
    found = next_round([slow, fast], limits, 0)
    assert found is not None
    assert found[0] is slow
    for _ in range(2):
        slow.begin_round()
        slow.end_round(whole=False)  # gained nothing
    found = next_round([slow, fast], limits, 0)
    assert found is not None
    assert found[0] is fast


def test_exhausted_and_forbidden_operators_are_left_out() -> None:
    plans = [plan("a"), plan("b")]
    plans[0].exhausted = True
    assert next_round(plans, Budget(8, 0, 4), 0, lambda each: each.workload_hash != "b") is None


def near_its_roof(name: str, trials: int = 0) -> OperatorPlan:
    """Its best is at 95 % of the roof at both shares, from its first trial on."""
    made = plan(name, trials=trials, secs=1.0)
    made.set_attainable(dict.fromkeys(SHARES, 0.95))
    return made


def test_an_operator_near_its_roof_is_searched_no_further_and_the_others_get_its_trials() -> None:
    plans = [near_its_roof("near", trials=8), plan("far")]
    assert [each.near_roof for each in plans] == [True, False]
    limits, made = Budget(32, 0, 8), 8
    while (found := next_round(plans, limits, made)) is not None:
        assert found[0] is plans[1]
        plans[1].complete += found[1]
        made += found[1]
    assert made == 32
    assert limits.saved(plans, made) == 0


def test_when_all_are_near_their_roof_the_search_ends_and_says_what_it_saved() -> None:
    plans = [near_its_roof("a", trials=8), near_its_roof("b", trials=8)]
    assert next_round(plans, Budget(64, 0, 8), 16) is None
    assert Budget(64, 0, 8).saved(plans, 16) == 48
    assert next_round(plans, Budget(64, 20, 8), 4) is None
    assert Budget(64, 20, 8).saved(plans, 4) == 16


def test_the_search_goes_on_when_a_roof_is_found_too_low() -> None:
    """A faster trial shows that the estimate was wrong."""
    made = near_its_roof("a", trials=8)
    made.add_trial("much faster", SHARES[0], 0.5)
    assert not made.near_roof
    found = next_round([made], Budget(32, 0, 8), 8)
    assert found is not None
    assert found[0] is made


@given(
    budget_trials=st.integers(1, 500),
    counts=st.lists(st.tuples(st.integers(0, 100), st.booleans(), st.booleans()), min_size=1, max_size=20),
)
def test_what_is_saved_is_what_a_search_without_roofs_would_still_have_made(
    budget_trials: int, counts: list[tuple[int, bool, bool]]
) -> None:
    plans = [plan(f"op{index}") for index in range(len(counts))]
    for each, (count, near, exhausted) in zip(plans, counts, strict=True):
        each.complete, each.near_roof, each.exhausted = count, near, exhausted
    limits = Budget(budget_trials, 0, 64)
    while (found := next_round(plans, limits, 0)) is not None:
        found[0].complete += found[1]
    saved = limits.saved(plans, 0)
    high = allocation.cap(budget_trials, len(plans))
    unspent = budget_trials - sum(min(each.complete, high) for each in plans)
    made = 0
    for each in plans:
        each.near_roof = False
    while (found := next_round(plans, limits, 0)) is not None:
        found[0].complete += found[1]
        made += found[1]
    assert saved == min(made, max(0, unspent))  # an operator's minimum may be owed beyond the budget


def test_a_trial_known_twice_counts_once() -> None:
    made = plan("a")
    assert made.best_s is None
    for _ in range(2):
        made.add_trial("c", SHARES[0], 1.0)
        assert made.complete == 0
    made.add_trial("c", "cpu/9of9core", 0.1)
    made.add_trial("c", SHARES[1], math.inf)
    assert made.complete == 1
    assert made.best_s == 1.0


def test_what_ran_at_some_shares_is_lacking_at_the_others_the_fastest_first() -> None:
    made = plan("a")
    assert made.lacking(9) == ([], frozenset())
    for name, secs in (("slow", 3.0), ("fast", 1.0), ("failed", math.inf), ("done", 2.0)):
        made.add_trial(name, SHARES[0], secs)
    assert made.add_trial("done", SHARES[1], 2.0), "it is complete by that"
    assert not made.add_trial("done", SHARES[1], 2.0)
    made.add_trial("elsewhere", SHARES[1], 1.9)  # the fastest there, and it lacks another share
    assert made.lacking(9) == (["fast", "slow"], frozenset({SHARES[1]}))
    assert made.lacking(1) == (["fast"], frozenset({SHARES[1]}))
    assert made.lacks("slow", SHARES[1])
    assert not any(made.lacks(*each) for each in (("slow", SHARES[0]), ("failed", SHARES[1]), ("done", SHARES[1])))
    for name in ("fast", "slow"):
        made.add_trial(name, SHARES[1], 1.0)
    assert made.lacking(9) == (["elsewhere"], frozenset({SHARES[0]}))


def test_what_the_log_holds_in_part_goes_before_any_search() -> None:
    heavy, light = plan("heavy", 9), plan("light", 1)
    for number in range(5):
        light.add_trial(f"c{number}", SHARES[0], 1.0)
    assert next_round([heavy, light], Budget(32, 0, 64), 0) == (light, 5)
    assert next_round([heavy, light], Budget(32, 0, 4), 0) == (light, 4)
    assert next_round([heavy, light], Budget(1, 3, 64), 0) == (light, 3)
    light.busy = True
    found = next_round([heavy, light], Budget(32, 0, 64), 0)
    assert found is not None
    assert found[0] is heavy


def test_what_could_not_be_built_failed_at_every_share() -> None:
    made = plan("a")
    assert made.add_trial("c", SHARES[0], math.inf, built=False)
    assert (made.complete, made.has("c"), made.lacking(9)[0]) == (1, True, [])
    assert not made.add_trial("c", SHARES[1], math.inf, built=False)
    assert made.add_trial("d", "cpu/9of9core", math.inf, built=False), "also where it was tried elsewhere"


def test_an_exhausted_operator_is_open_while_it_lacks_something() -> None:
    made = plan("a")
    made.exhausted = True
    made.add_trial("c", SHARES[0], 1.0)
    for given_up in (True, False):
        made.given_up = given_up
        assert made.open != given_up
    made.add_trial("c", SHARES[1], 1.0)
    assert not made.open


def test_a_search_that_brought_nothing_new_ends_the_space_for_those_who_saw_it_begin() -> None:
    seen, late = plan("a", trials=2), plan("b", trials=2)
    seen.begin_round()
    for each in (seen, late):
        each.end_round(whole=True)
    assert (seen.exhausted, late.exhausted) == (True, False)


def test_room_is_what_the_budget_and_the_cap_of_the_operator_leave() -> None:
    plans = [plan("a", trials=4), plan("b")]
    assert Budget(8, 0, 8).room(plans[1], plans, 0) == 4
    assert Budget(100, 0, 8).room(plans[0], plans, 0) == 96
    assert Budget(8, 100, 8).room(plans[0], plans, 3) == 97
    plans[0].near_roof = True
    assert Budget(8, 100, 8).room(plans[0], plans, 3) == 0


def test_joint_times_need_every_share_and_mark_failures() -> None:
    times = {"both": dict(zip(SHARES, (1.0, 4.0), strict=True)), "one": {SHARES[0]: 1.0}}
    times["failed"] = dict(zip(SHARES, (1.0, math.inf), strict=True))
    assert joint_times(times, SHARES) == {"both": 2.0, "failed": 0.0}


def test_finalists_are_the_best_few_of_each_share_and_the_untuned() -> None:
    ranked = [validation(f"t{place}", 1, 1.0 + place) for place in range(BEST_PER_SHARE + 2)]
    best = {"cpu/1of16core": ranked, "cpu/2of16core": [validation("other", 2, 1.0), validation("t0", 2, 2.0)]}
    names = [record.trace for record in ranked]
    assert list(finalists(best, [], "untuned").values()) == ["", *names[:BEST_PER_SHARE], "other"]
    wrong = replace(ranked[0], status=Status.WRONG_OUTPUT, run_secs=())
    assert list(finalists(best, [wrong], "untuned").values()) == ["", *names[1 : BEST_PER_SHARE + 1], "other"]


def test_the_winner_of_earlier_validations_takes_part_again_beside_the_best_trials() -> None:
    ranked = [validation(f"t{place}", 1, 1.0 + place) for place in range(3)]
    best = {"cpu/1of16core": ranked}
    earlier = [
        validation("winner", 1, 0.5),
        validation("slower", 1, 0.7),
        validation("elsewhere", 2, 0.1),
        validation("", 1, 2.0),
    ]
    assert list(finalists(best, earlier, "untuned", 1).values()) == ["", "winner", "t0"]
    assert list(finalists(best, earlier, earlier[3].candidate_id, 2).values()) == ["", "winner", "t0", "t1"]


def test_a_search_ends_where_only_operators_that_hardly_matter_could_gain() -> None:
    heavy, small = plan("heavy", 1, 8, secs=1.0), plan("small", 1, 8, secs=0.009)
    limits = Budget(100, 0, 8)
    assert allocation.left_to_gain([heavy, small]) == 1.0, "the roof is not known"
    heavy.set_attainable(dict.fromkeys(SHARES, 0.95))
    assert math.isclose(allocation.left_to_gain([heavy, small]), 0.009 / 1.009)
    assert next_round([heavy, small], limits, 16) is None
    assert limits.saved([heavy, small], 16) == 84
    assert next_round([heavy, small], Budget(0, 8, 8), 0) == (small, 8), "they were asked for"
    assert next_round([heavy, small, plan("new", 1, 0)], limits, 16) is not None


def test_an_operator_gains_at_most_what_its_roofs_leave() -> None:
    half = plan("half", 1, 1, secs=1.0)
    half.set_attainable({SHARES[0]: 0.45, SHARES[1]: 0.9})
    assert math.isclose(half.most_gain, 1 - math.sqrt(0.5))
    half.set_attainable({SHARES[0]: 0.45})
    assert half.most_gain == 1.0


def test_trials_go_where_the_time_inside_the_model_is_largest() -> None:
    alone, inside = plan("alone", 1, 8, secs=1.0), plan("inside", 1, 8, secs=0.6)
    limits = Budget(100, 0, 8)
    found = next_round([alone, inside], replace(limits, trials=32), 16)
    assert found is not None
    assert found[0] is alone
    inside.inside = 2.0
    found = next_round([alone, inside], replace(limits, trials=32), 16)
    assert found is not None
    assert found[0] is inside
    alone.set_attainable(dict.fromkeys(SHARES, 0.95))
    inside.set_attainable(dict.fromkeys(SHARES, 0.3))
    assert math.isclose(allocation.left_to_gain([alone, inside]), 1.2 / 2.2 * inside.most_gain)
