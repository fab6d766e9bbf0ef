"""What a disturbance took of the time, alone and of several timings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fractune_core.records import Disturbance, total

QUIET = Disturbance(
    wall_s=2.0,
    off_core_s=0.0,
    steal_s=0.0,
    others_s=0.0,
    waited_s=0.0,
    preemptions=0,
    throttles=0,
    throttled_s=0.0,
)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, 0.0),
        ({"others_s": 1.0, "preemptions": 9}, 0.0),  # they took nothing of its time
        ({"off_core_s": 0.5}, 0.25),
        ({"steal_s": 0.5}, 0.25),  # a kernel that does not tell stolen time from the thread's own
        ({"waited_s": 0.5, "off_core_s": 0.1}, 0.25),  # another thread than the one that timed
        ({"waited_s": 0.2, "steal_s": 0.2, "off_core_s": 0.3}, 0.2),
        ({"waited_s": 9.0}, 1.0),  # of many threads together
        ({"wall_s": 0.0, "steal_s": 0.01}, 0.0),
    ],
)
def test_the_part_of_the_time_that_was_lost(changes: dict[str, Any], lost: float) -> None:
    assert replace(QUIET, **changes).lost == pytest.approx(lost)


def test_several_timings_together() -> None:
    first = replace(QUIET, steal_s=0.1, preemptions=2, throttles=1, clock_mhz=3000)
    second = replace(QUIET, wall_s=1.0, off_core_s=0.4, preemptions=3, throttled_s=0.2, clock_mhz=2500)
    assert total([first, None, second]) == Disturbance(3.0, 0.4, 0.1, 0.0, 0.0, 5, 1, 0.2, 2500)
    assert total([None]) is None
    assert total([]) is None


def test_it_survives_json_and_what_a_later_version_adds() -> None:
    told = json.loads(json.dumps(replace(QUIET, clock_mhz=2000).to_json()))
    assert Disturbance.from_json({**told, "heat": 1.0}) == replace(QUIET, clock_mhz=2000)
