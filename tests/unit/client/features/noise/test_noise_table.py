"""How it is said what explains a spread."""

from __future__ import annotations

from typing import Any

import pytest

from fractune.features.noise import explanation_lines

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


CAUSES = (
    "the spread is explained by steal (tau 0.51), waiting (tau 0.44): the half of 96 pairs with less steal differs by "
    "2.0 % (median), the other half by 14.5 %"
)
NO_CAUSE = "no counter of the kernel explains the spread (96 pairs)"
DIVIDED = "divided by the anchor's times, pairs differ by {} % in place of 10.0 %".format
VARIES, NOT_EITHER = "the machine's speed varies by 16.2 % (median)", "the machine's speed does not explain it either"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, f"{CAUSES}; {DIVIDED(11.0)}"),
        ({"anchored_spread": 0.03}, f"{CAUSES}; {DIVIDED(3.0)}; the anchor varies by 16.2 % (median)"),
        ({"causes": [], "anchored_spread": 0.03}, f"{NO_CAUSE}; {VARIES}: {DIVIDED(3.0)}"),
        ({"causes": []}, f"{NO_CAUSE}; {NOT_EITHER}: {DIVIDED(11.0)}"),
        (dict.fromkeys(("spread", "anchored_spread", "anchor_spread")), f"{CAUSES}; the anchor could not be timed"),
    ],
)
def test_a_spread_is_told_with_its_causes_and_the_anchor(changes: dict[str, Any], said: str) -> None:
    assert explanation_lines({"explanation": {**FOUND, **changes}}) == [said]


def test_where_nothing_was_counted_nothing_is_said() -> None:
    assert explanation_lines({"explanation": None}) == []
