"""Match: which record to use at a share. Exact, near with measured regret, robust, or none with the reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tuner_core.records import UNTUNED, Kind, Status, TuningRecord
from tuner_core.shares import GrantedShare

NEAR_FACTOR = 2.0
"""A share counts as near when its units are within this factor of the share asked for."""


class How(StrEnum):
    EXACT = "exact"
    NEAR = "near"
    ROBUST = "robust"
    NONE = "none"


@dataclass(frozen=True)
class Match:
    """The answer for one operator: which record, how it was chosen, and what that costs as far as measured."""

    how: How
    record: TuningRecord | None
    """None = use the untuned default"""
    regret: float
    """worst relative loss against the best known at the shares that were looked at; 0 for exact and none"""
    reason: str


def find_match(records: Iterable[TuningRecord], granted: GrantedShare, device_key: str, target_key: str) -> Match:
    """Choose among `records` of one workload for the share `granted` of the device `device_key`.

    1. Only published measurements count: final, right output, this device and target.
    2. Measured at this very share: the fastest there.
    3. Else the schedule whose measured times at the nearest shares on either side lose least.
    4. Else the robust one: smallest worst-case regret over all shares measured.
    5. Else none. A schedule that the untuned default beats is never chosen.
    """
    published = [r for r in records if r.kind is Kind.FINAL and r.status is Status.OK]
    if not published:
        return Match(How.NONE, None, 0.0, "no published record of this operator")
    same = [r for r in published if r.device.key == device_key]
    if not same:
        return Match(How.NONE, None, 0.0, f"measured only on another device: {_first(r.device.key for r in published)}")
    same = [r for r in same if r.target_key == target_key]
    if not same:
        return Match(How.NONE, None, 0.0, "measured only for another target")
    same = [r for r in same if r.granted.mechanism == granted.mechanism]
    if not same:
        return Match(How.NONE, None, 0.0, f"never measured under a '{granted.mechanism}' share")
    return _choose(same, granted)


def _choose(records: list[TuningRecord], granted: GrantedShare) -> Match:
    times = best_times(records)
    if granted.units in times:
        candidate = min(times[granted.units], key=lambda c: times[granted.units][c])
        record = _latest(records, candidate, granted.units)
        return _answer(How.EXACT, record, 0.0, f"fastest published at {granted.share}")
    near = _nearest(times, granted.units)
    how, units = (How.NEAR, near) if near else (How.ROBUST, sorted(times))
    candidate, regret = least_regret(times, units)
    record = _latest(records, candidate, None)
    where = ", ".join(str(u) for u in units)
    label = "nearest shares" if how is How.NEAR else "all shares measured"
    return _answer(how, record, regret, f"loses at most {regret:.1%} at the {label} ({where} units)")


def _answer(how: How, record: TuningRecord, regret: float, reason: str) -> Match:
    if record.trace == UNTUNED:
        return Match(How.NONE, None, 0.0, f"the untuned default is the fastest known: {reason}")
    return Match(how, record, regret, reason)


def best_times(records: Iterable[TuningRecord]) -> dict[int, dict[str, float]]:
    """Seconds by granted units, then by candidate: the median of the newest measurement counts."""
    times: dict[int, dict[str, float]] = {}
    for record in sorted(records, key=lambda r: r.measured_at):
        times.setdefault(record.granted.units, {})[record.candidate_id] = record.median_s
    return times


def least_regret(times: Mapping[int, Mapping[str, float]], units: Iterable[int]) -> tuple[str, float]:
    """The candidate with the smallest worst-case regret over `units`, and that regret.

    A candidate that was not measured at one of `units` has infinite regret there; should that leave none,
    the units are dropped one by one, farthest first, until one is measured at all that remain.
    """
    wanted = list(units)
    while True:
        candidates = {c for unit in wanted for c in times[unit]}
        worst = {c: max(times[u].get(c, math.inf) / min(times[u].values()) - 1.0 for u in wanted) for c in candidates}
        best = min(worst, key=lambda c: (worst[c], c))
        if math.isfinite(worst[best]) or len(wanted) == 1:
            return best, worst[best]
        wanted.pop()


def _nearest(times: Mapping[int, Mapping[str, float]], units: int) -> list[int]:
    """The measured shares next below and next above `units`, nearest in ratio first, within NEAR_FACTOR."""
    below = max((u for u in times if u < units), default=0)
    above = min((u for u in times if u > units), default=0)
    near = [u for u in (below, above) if u and max(u / units, units / u) <= NEAR_FACTOR]
    return sorted(near, key=lambda u: max(u / units, units / u))


def _latest(records: list[TuningRecord], candidate: str, units: int | None) -> TuningRecord:
    rows = [r for r in records if r.candidate_id == candidate and units in (None, r.granted.units)]
    return max(rows, key=lambda r: r.measured_at)


def _first(keys: Iterable[str]) -> str:
    return min(keys)
