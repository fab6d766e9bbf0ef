"""One time for a candidate that was measured at several shares."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable


def joint_time_s(secs: Iterable[float]) -> float:
    """The geometric mean of times in seconds, so that every share has the same weight; 0 when one time is a failure (0
    or infinite). Raises StatisticsError for no times.
    """
    times = list(secs)
    return statistics.geometric_mean(times) if all(0 < time < math.inf for time in times) else 0.0
