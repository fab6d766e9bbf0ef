"""One time for a candidate that was measured at several shares."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable


def joint_time_s(secs: Iterable[float]) -> float:
    """The geometric mean of times in seconds, so that no share outweighs another; 0 when one is a failure (0 or
    infinite). Raises StatisticsError when there is no time.
    """
    times = list(secs)
    return statistics.geometric_mean(times) if all(0 < time < math.inf for time in times) else 0.0
