"""What explains a spread: made-up pairs of timings, in which one cause made the time, or none did."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from fractune_core.analysis.noise import CAUSES, Explanation, Pair, Timing, explain, mean_of_causes, taus
from fractune_core.records import Disturbance

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
    """Each timing made of two random parts: what is counted, and what nobody sees."""
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


def test_an_anchor_that_moves_by_itself_explains_nothing() -> None:
    found = explain_one(pairs(48, lambda anchor, unseen: Timing(TRUE_S * (1 + unseen), QUIET, 1 + anchor)))
    assert found is not None
    assert not found.anchor_explains


def test_an_anchor_that_was_not_timed_says_nothing() -> None:
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
