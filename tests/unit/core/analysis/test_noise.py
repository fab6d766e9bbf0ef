"""What a measurement is worth: spread, rank agreement, regret, and the advice that follows."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from fractune_core.analysis.noise import (
    CAUSES,
    WIDEST_TIE,
    Explanation,
    Pair,
    Score,
    Spread,
    Timing,
    explain,
    kendall_tau_b,
    mean_of_causes,
    mean_times,
    measurers_at_once,
    racing_margin,
    score,
    spread,
    taus,
    tie_width,
    top1_regret,
)
from fractune_core.records import Disturbance


def named(*secs: float) -> dict[str, float]:
    return {f"c{number}": each for number, each in enumerate(secs)}


def good(tau: float = 1.0, regret: float = 0.0) -> Score:
    return Score(Spread(0.0, 0.0), tau, tau, regret)


def test_tau_b_counts_ties_and_leaves_out_pairs_within_one() -> None:
    # As scipy.stats.kendalltau([1, 2, 2, 3, 4], [1, 3, 2, 2, 5]) has it: 7 pairs agree, 1 does not, of 9 and 9.
    assert kendall_tau_b(named(1, 2, 2, 3, 4), named(1, 3, 2, 2, 5)) == pytest.approx(6 / 9)
    assert kendall_tau_b(named(1, 1, 1), named(1, 2, 3)) is None
    reference, swapped = named(1.00, 1.01, 2.00), named(1.01, 1.00, 2.00)
    assert kendall_tau_b(reference, swapped) == pytest.approx(1 / 3)
    assert kendall_tau_b(reference, swapped, tie=0.02) == 1.0
    assert kendall_tau_b(reference, named(2.00, 1.01, 1.00), tie=0.02) == -1.0
    assert kendall_tau_b(reference, swapped, tie=1.0) is None


def test_the_spread_is_the_difference_over_the_mean_of_those_timed_twice() -> None:
    first = {**named(*[1.0] * 10), "once": 5.0}
    second = named(*[1.0] * 5, *[1.1] * 4, 3.0)
    found = spread(first, second)
    assert found is not None
    assert found.median == pytest.approx((0.1 / 1.05) / 2)
    assert found.p90 == pytest.approx(0.1 / 1.05)
    assert spread(first, {}) is None
    assert "once" not in mean_times(first, second)


def test_a_tie_is_never_wider_than_what_a_user_cares_for() -> None:
    assert tie_width(Spread(0.01, 0.03)) == 0.03
    assert tie_width(Spread(0.3, 0.6)) == WIDEST_TIE


def test_regret_is_what_the_winner_loses() -> None:
    reference = named(1.0, 1.5, 2.0)
    assert top1_regret(reference, named(9.0, 8.0, 10.0)) == pytest.approx(0.5)
    assert top1_regret(reference, {"c2": 1.0}) == pytest.approx(1.0)
    assert top1_regret(reference, {}) is None


def test_a_setting_is_judged_by_the_worse_of_its_passes() -> None:
    reference = named(1.0, 2.0, 3.0)
    judged = score([reference, named(2.0, 1.0, 3.0)], [reference, reference], tie=0.0)
    assert judged.tau == pytest.approx(1 / 3)
    assert judged.regret == pytest.approx(1.0)
    assert not judged.is_good
    lost = score([reference, {}], [reference, reference], tie=0.0)
    assert (lost.spread, lost.tau, lost.regret) == (None, None, None)
    assert not lost.is_good


@pytest.mark.parametrize(
    ("first", "margin"),
    [
        ((1.0, 1.0, 9.0), 1.10),
        ((1.0, 1.12, 9.0), 1.15),
        ((1.4, 1.0, 9.0), 1.5),
        ((1.0, 2.3, 9.0), 2.5),
        ((1.2, 1.2, 1.0), 1.25),  # what is far behind may look fastest for once
    ],
)
def test_the_margin_keeps_every_winner_in_the_race(first: tuple[float, ...], margin: float) -> None:
    reference = named(1.0, 1.01, 5.0)
    assert racing_margin(reference, [reference, named(*first)]) == margin


def test_as_many_measurers_as_still_rank_right() -> None:
    assert measurers_at_once({1: good(), 2: good(tau=0.91), 4: good(tau=0.8)}) == 2
    assert measurers_at_once({1: good(), 2: good(regret=0.021), 4: good()}) == 4
    assert measurers_at_once({1: good(tau=0.5), 2: good(tau=0.5)}) == 1


QUIET = Disturbance(0.1, 0.0, 0.0, 0.0, 0.0, preemptions=0, throttles=0, throttled_s=0.0, clock_mhz=3000)
TRUE_S = 1e-3
MAKERS: dict[str, Callable[[float], Disturbance]] = {
    "off core": lambda part: replace(QUIET, off_core_s=part * QUIET.wall_s),
    "steal": lambda part: replace(QUIET, steal_s=part * QUIET.wall_s),
    "waiting": lambda part: replace(QUIET, waited_s=part * QUIET.wall_s),
    "others": lambda part: replace(QUIET, others_s=part * QUIET.wall_s),
    "throttling": lambda part: replace(QUIET, throttled_s=part * QUIET.wall_s),
    "preemptions": lambda part: replace(QUIET, preemptions=round(part * 1000)),
    "slow clock": lambda part: replace(QUIET, clock_mhz=round(3000 / (1 + part))),
}
"""a disturbance in which one cause took a part of the time"""


def pairs(count: int, timing: Callable[[float, float], Timing]) -> dict[str, Pair]:
    """Each timing is the sum of two random parts: one that is counted, and one that is not."""
    draw = random.Random(count)
    made = [timing(draw.random() / 2, draw.random() / 2) for _ in range(2 * count)]
    return {f"c{number}": (made[2 * number], made[2 * number + 1]) for number in range(count)}


def explain_one(made: dict[str, Pair]) -> Explanation | None:
    return explain([made])


def test_there_is_a_maker_for_every_cause() -> None:
    assert MAKERS.keys() == CAUSES.keys()


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_that_made_the_time_is_named_and_no_other(cause: str) -> None:
    found = explain_one(pairs(48, lambda seen, _: Timing(TRUE_S * (1 + seen), MAKERS[cause](seen), 1.0)))
    assert found is not None
    assert found.causes == [cause]
    assert (found.taus[cause] or 0) > 0.9
    assert [tau for other, tau in found.taus.items() if other != cause] == [None] * (len(CAUSES) - 1)
    assert found.calm_spread is not None
    assert found.disturbed_spread is not None
    assert found.calm_spread < found.disturbed_spread


def test_the_strongest_of_several_comes_first() -> None:
    def timing(seen: float, unseen: float) -> Timing:
        disturbance = replace(QUIET, steal_s=seen * QUIET.wall_s, waited_s=unseen * QUIET.wall_s)
        return Timing(TRUE_S * (1 + 2 * seen + unseen), disturbance, 1.0)

    found = explain_one(pairs(96, timing))
    assert found is not None
    assert found.causes == ["steal", "waiting"]


def test_what_has_nothing_to_do_with_the_time_explains_nothing() -> None:
    for count in range(10, 60):
        found = explain_one(
            pairs(count, lambda seen, unseen: Timing(TRUE_S * (1 + unseen), MAKERS["steal"](seen), 1.0))
        )
        assert found is not None
        assert found.causes == []
        assert (found.calm_spread, found.disturbed_spread) == (None, None)
        assert not found.anchor_explains


def test_the_anchor_shows_a_machine_that_changes_its_speed() -> None:
    """In a step between the passes, which no order within a setting would show."""

    def timing(speed: float, unseen: float) -> Timing:
        return Timing(TRUE_S * speed * (1 + unseen / 100), QUIET, speed)

    draw = random.Random(0)
    stepped = {f"c{number}": (timing(1.0, draw.random()), timing(1.2, draw.random())) for number in range(48)}
    found = explain_one(stepped)
    assert found is not None
    assert found.causes == []
    assert found.anchor_explains
    assert found.anchor_spread == pytest.approx(0.2 / 1.1)
    assert found.spread == pytest.approx(found.anchor_spread, abs=0.01)
    assert found.anchored_spread == pytest.approx(0.003, abs=0.002)


def test_an_anchor_that_moves_by_itself_or_was_not_timed_explains_nothing() -> None:
    found = explain_one(pairs(48, lambda anchor, unseen: Timing(TRUE_S * (1 + unseen), QUIET, 1 + anchor)))
    assert found is not None
    assert not found.anchor_explains
    found = explain_one(pairs(48, lambda _, unseen: Timing(TRUE_S * (1 + unseen), QUIET, 0.0)))
    assert found is not None
    assert (found.spread, found.anchored_spread, found.anchor_spread) == (None, None, None)
    assert not found.anchor_explains


def test_settings_that_suffer_differently_do_not_hide_each_others_cause() -> None:
    """In each of them the cause makes the time; one lost more in its second pass, and was faster for another reason."""
    first = pairs(24, lambda seen, _: Timing(TRUE_S * (1 + seen), MAKERS["waiting"](seen), 1.0))
    second = {
        name: (one, replace(other, secs=other.secs / 4, disturbance=MAKERS["waiting"](0.5 + waited(other))))
        for name, (one, other) in first.items()
    }
    assert (taus(first)["waiting"] or 0) > 0.9
    assert (taus(second)["waiting"] or 0) > 0.9
    found = explain([first, second])
    assert found is not None
    assert found.causes == ["waiting"]
    assert found.pairs == 48
    mixed = taus({**first, **{f"second {name}": pair for name, pair in second.items()}})
    assert (mixed["waiting"] or 0) < (found.taus["waiting"] or 0) / 2


def waited(timing: Timing) -> float:
    return CAUSES["waiting"](timing.disturbance)


def test_too_little_to_tell() -> None:
    assert explain([]) is None
    assert explain([{}]) is None
    assert explain_one(pairs(1, lambda seen, _: Timing(TRUE_S, MAKERS["steal"](seen), 1.0))) is None
    assert set(taus({}).values()) == {None}
    assert mean_of_causes([]) == {}


def test_the_mean_of_each_cause() -> None:
    means = mean_of_causes([QUIET, replace(QUIET, steal_s=0.05, preemptions=4)])
    assert means["steal"] == pytest.approx(0.25)
    assert means["preemptions"] == pytest.approx(20)
    assert means["slow clock"] == pytest.approx(1 / 3000)
