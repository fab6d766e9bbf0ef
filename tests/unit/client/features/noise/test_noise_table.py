"""How it is said what explains a spread."""

from __future__ import annotations

from typing import Any

from fractune.features.noise.table import explanation_lines

FOUND: dict[str, Any] = {
    "pairs": 96,
    "taus": {"steal": 0.51, "waiting": 0.44, "throttling": None},
    "causes": ["steal", "waiting"],
    "calm_spread": 0.02,
    "disturbed_spread": 0.145,
    "spread": 0.1,
    "anchored_spread": 0.11,
    "anchor_spread": 0.162,
}


def line(**changes: Any) -> str:
    (said,) = explanation_lines({"explanation": {**FOUND, **changes}})
    return said


def test_the_causes_are_named_with_what_the_spread_is_without_the_strongest() -> None:
    said, machine = line().split("; ", 1)
    causes, halves = said.split(": ")
    assert causes == "the spread is explained by steal (tau 0.51), waiting (tau 0.44)"
    assert halves == ("the half of 96 pairs with less steal differs by 2.0 % (median), the other half by 14.5 %")
    assert machine == "divided by the anchor's times, pairs differ by 11.0 % in place of 10.0 %"


def test_an_anchor_that_suffers_too() -> None:
    assert line(anchored_spread=0.03).endswith(
        "pairs differ by 3.0 % in place of 10.0 %; the anchor varies by 16.2 % (median)"
    )


def test_a_machine_that_changes_its_speed_by_itself() -> None:
    said, machine = line(causes=[], anchored_spread=0.03).split("; ", 1)
    assert said == "no counter of the kernel explains the spread (96 pairs)"
    assert machine == (
        "the machine's speed varies by 16.2 % (median): divided by the anchor's times, pairs differ by 3.0 % in place "
        "of 10.0 %"
    )


def test_a_spread_that_nothing_explains() -> None:
    assert "; the machine's speed does not explain it either: divided" in line(causes=[])


def test_an_anchor_that_could_not_be_timed() -> None:
    assert line(spread=None, anchored_spread=None, anchor_spread=None).endswith("; the anchor could not be timed")


def test_where_nothing_was_counted_nothing_is_said() -> None:
    assert explanation_lines({"explanation": None}) == []
