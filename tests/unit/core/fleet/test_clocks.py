from __future__ import annotations

import re
import time

import pytest

from fractune_core.fleet.redis_connection import CLOCK_LIMIT_S, ClockWrong, check_clock, redis_time_s
from fractune_core.fleet.redis_names import CLOCK_TOLERANCE_S


@pytest.mark.parametrize(
    ("ahead_s", "said"), [(3600.0, "1.00 h ahead of that of Redis"), (-86400.0, "24.00 h behind that of Redis")]
)
def test_a_clock_that_is_off_is_named_with_its_difference(ahead_s: float, said: str) -> None:
    with pytest.raises(ClockWrong, match=f"^the clock of this worker is {re.escape(said)}, and 0.5 h are allowed"):
        check_clock("this worker", time.time() - ahead_s)


def test_two_parts_that_are_let_in_differ_by_no_more_than_work_may() -> None:
    assert 2 * CLOCK_LIMIT_S <= CLOCK_TOLERANCE_S
    for ahead_s in (0.9, -0.9):
        check_clock("this server", time.time() - ahead_s * CLOCK_LIMIT_S)


def test_the_time_of_redis_has_its_microseconds() -> None:
    assert redis_time_s((1_000_000_000, 500_000)) == 1_000_000_000.5
