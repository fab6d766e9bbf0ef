"""The verdicts of a row of the first table: the fastest right kernel of ours against each peer, with its interval."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.table.contest import MISSING, RIGHT, WRONG
from fractune_core.analysis.roofline import LAUNCH_BOUND, is_launch_bound
from fractune_core.analysis.slowdown_ci import slowdown

OURS = "fractune"
"""begins the name of each implementation of ours"""


@dataclass(frozen=True)
class Verdict:
    text: str
    ratio: float = math.nan
    """our time over the peer's; NaN for a row that cannot tell"""


def verdicts(contestants: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """Our fastest against each peer. It is chosen by other repeats than those of the ratio."""
    ours = {name: each for name, each in contestants.items() if name.startswith(OURS)}
    peers = {name: each for name, each in contestants.items() if name not in ours}
    right = {name: each for name, each in ours.items() if each["status"] == RIGHT}
    if not right:
        return [Verdict("; ".join(f"{name} is {_text(each)}" for name, each in ours.items()))]
    name = min(right, key=lambda name: statistics.median(right[name]["choosing_secs"]))
    return [_against(name, right[name], peer, theirs) for peer, theirs in peers.items()]


def _against(name: str, mine: Mapping[str, Any], peer: str, theirs: Mapping[str, Any]) -> Verdict:
    time = f"{name} {statistics.median(mine['run_secs']) * 1e6:.1f} us"
    if theirs["status"] != RIGHT:
        return Verdict(f"{time}; {peer} is {_text(theirs)}")
    found = slowdown(mine["run_secs"], theirs["run_secs"], interleaved=True)
    ratio = f"{time}, {1 + found.median:.3f} ({1 + found.low:.3f}..{1 + found.high:.3f}) of {theirs['by'] or peer}"
    launched = [side for side, each in ((name, mine), (peer, theirs)) if _is_launch_bound(each)]
    if launched:
        return Verdict(f"cannot tell: {ratio}; {' and '.join(launched)} up to {LAUNCH_BOUND:g} launches")
    return Verdict(f"cannot tell: {ratio}") if found.is_tie else Verdict(ratio, 1 + found.median)


def _is_launch_bound(each: Mapping[str, Any]) -> bool:
    return bool(is_launch_bound(statistics.median(each["run_secs"]), each["launch_s"]))


def wrong(contestants: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"{name} is {_text(each)}" for name, each in contestants.items() if each["status"] == WRONG]


def _text(each: Mapping[str, Any]) -> str:
    if each["status"] == WRONG:
        return f"WRONG by {each['max_error']:.1e}, {each['allowed']:.1e} is allowed"
    return f"not there ({each['cause']})" if each["status"] == MISSING else f"{each['status']} ({each['cause']})"
