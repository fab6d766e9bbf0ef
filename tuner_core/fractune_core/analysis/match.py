"""Match: which schedule to use at a share. Exact, near with measured regret, robust, or none with the reason.

One rule serves two readers. The server chooses a record for each operator of a model (`find_match`), and inference
chooses a variant of a bundle (`choose`). Times are seconds by granted units, then by finalist. Reported times exclude
the repeats that were used for selection, because the fastest of many repeats looks faster than it is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from fractune_core.shares import GrantedShare, units_text

if TYPE_CHECKING:
    from fractune_core.analysis.validated import MeasuredTimes, Times, ValidatedRecords
    from fractune_core.records import TuningRecord

NEAR_FACTOR = 2.0
"""A share counts as near when its units are within this factor of the requested share."""
CONTRADICTION = 1.5
"""larger factors between published times of one schedule at one share are reported"""


class How(StrEnum):
    """The ways to match, the strictest first."""

    EXACT = "exact"
    NEAR = "near"
    ROBUST = "robust"
    NONE = "none"


_STRICTNESS = (How.EXACT, How.NEAR, How.ROBUST)
LOOSEST = How.ROBUST


@dataclass(frozen=True)
class Policy:
    """How far a match may go."""

    loosest: How = LOOSEST
    """the loosest way allowed; stricter ways are tried first"""
    allow_unmeasured: bool = False
    """offer the fastest schedule of the nearest share, though its loss elsewhere was never measured"""

    def allows(self, how: How) -> bool:
        return _STRICTNESS.index(how) <= _STRICTNESS.index(self.loosest)


DEFAULT_POLICY = Policy()


@dataclass(frozen=True)
class Choice:
    """The answer among finalists."""

    how: How
    name: str | None
    """None = use the untuned default"""
    regret: float
    """worst relative loss against the best known at the compared shares; 0 for exact, NaN when it was not measured"""
    reason: str


@dataclass(frozen=True)
class Match:
    """The answer for one operator: which record, how it was chosen, and what that costs as far as measured."""

    how: How
    record: TuningRecord | None
    """None = use the untuned default"""
    regret: float
    """as in Choice"""
    reason: str
    untuned_s: float | None = None
    """where the untuned default is to be used: its reported time at this very share; None = not measured there"""


def choose(
    times: Times,
    units: int,
    default: str,
    policy: Policy = DEFAULT_POLICY,
    unit: str = "unit",
    *,
    reported: Times | None = None,
) -> Choice:
    """Choose among finalists for a share of `units` units. `default` names the untuned finalist, `unit` the kind of
    unit. `times` choose; `reported` has other repeats of the same finalists and shares, for the reported loss (None =
    `times`).

    1. Measured at this very share: the fastest there.
    2. Else the finalist with the least loss at the two nearest shares, on either side where possible; the nearer must
       be within NEAR_FACTOR.
    3. Else the robust finalist: smallest worst-case regret over all measured shares.
    4. Else, if the policy allows it, the fastest at the nearest share.

    For 2 and 3 a finalist must have been measured at every compared share, and there must be at least two. A finalist
    that is slower than the default at any of them is never chosen.
    """
    if units in times:
        name = _fastest(times[units], default)
        here = units_text(units, unit)
        if name == default:
            return Choice(How.NONE, None, 0.0, f"the untuned default is the fastest measured at {here}")
        return Choice(How.EXACT, name, 0.0, f"it is the fastest that was measured at {here}")
    for how, shares in ((How.NEAR, _nearest_two(times, units)), (How.ROBUST, sorted(times))):
        label = "the nearest measured shares" if how is How.NEAR else "all measured shares"
        if policy.allows(how) and len(shares) > 1:
            found = choose_over(times, shares, default, label, unit, how=how, reported=reported)
            if found is not None:
                return found
    measured = units_text(sorted(times), unit)
    if policy.allow_unmeasured and times:
        nearest = min(times, key=lambda other: (_ratio(other, units), other))
        name, at = _fastest(times[nearest], default), units_text(nearest, unit)
        reason = f"is the fastest at {at}, the nearest measured share; its speed here was never measured"
        return _chosen(How.NEAR, name, default, math.nan, reason)
    here = units_text(units, unit)
    known = f"the times at {measured} do not show which is fast here" if times else "nor at another share"
    return Choice(How.NONE, None, math.nan, f"nothing was measured at {here}, {'and ' if times else ''}{known}")


def choose_over(
    times: Times,
    shares: Sequence[int],
    default: str,
    label: str,
    unit: str = "unit",
    *,
    how: How = How.ROBUST,
    reported: Times | None = None,
) -> Choice | None:
    """The finalist with the smallest worst-case regret over `shares`, which the reason calls `label`; None if none was
    measured at all of them. The rest is as of `choose`.
    """
    found = least_regret(times, shares, default)
    if found is None:
        return None
    regret = reported_regret(found[0], times, times if reported is None else reported, shares, default)
    where = f"{label} ({units_text(sorted(shares), unit)})"
    reason = f"is at most {regret * 100:.1f} % slower than the fastest at {where}"
    return _chosen(how, found[0], default, regret, reason)


def least_regret(times: Times, shares: Iterable[int], default: str) -> tuple[str, float] | None:
    """The finalist with the smallest worst-case regret over `shares`, and its regret; None when none was measured at
    all of them. Finalists that are slower than a measured `default` at one of them are left out.
    """
    rows = [times[share] for share in shares]
    best = [min(row.values()) for row in rows]
    limits = [row.get(default, math.inf) for row in rows]
    worst = {}
    for name in rows[0]:
        secs = [row.get(name, math.inf) for row in rows]
        if math.inf not in secs and all(map(operator.le, secs, limits)):
            worst[name] = max(map(operator.truediv, secs, best)) - 1.0
    if not worst:
        return None
    name = min(worst, key=lambda name: (worst[name], name != default, name))
    return name, worst[name]


def reported_regret(name: str, times: Times, reported: Times, shares: Iterable[int], default: str) -> float:
    """The reported loss of a finalist, which was measured at all `shares`, at the worst of them, against the finalist
    that would be chosen there. `times` decide which share is the worst and which finalist is chosen, because the
    largest of several reported losses would be too large. So the loss may be a little below 0 for finalists of equal
    speed.
    """
    worst = max(shares, key=lambda share: times[share][name] / min(times[share].values()))
    return reported[worst][name] / reported[worst][_fastest(times[worst], default)] - 1.0


def find_match(
    validated: ValidatedRecords,
    granted: GrantedShare,
    device_key: str,
    target_key: str,
    policy: Policy = DEFAULT_POLICY,
) -> Match:
    """Choose among the validations of one workload for the share `granted` of the device `device_key`.

    Only published measurements count: right output, this device, target and mechanism. Of several measurements of a
    schedule at a share, the fastest by the choosing repeats counts. So more records never make an exact match slower.
    When measurements contradict each other, the reason reports it.
    """
    measured = validated.measured(device_key, target_key, granted.mechanism)
    if not measured.records:
        return Match(How.NONE, None, math.nan, _why_nothing(validated.published, granted, device_key, target_key))
    choice = choose(
        measured.choosing, granted.units, measured.default, policy, granted.unit, reported=measured.reported
    )
    if choice.name is None:
        untuned = measured.fastest(measured.default, granted.units)
        return Match(choice.how, None, choice.regret, choice.reason, untuned.median_s if untuned else None)
    own = measured.by_candidate[choice.name]
    return Match(
        choice.how,
        _nearest_record(measured, choice.name, granted.units),
        choice.regret,
        choice.reason + _contradiction(own, granted.unit),
    )


def _why_nothing(published: Sequence[TuningRecord], granted: GrantedShare, device_key: str, target_key: str) -> str:
    """The reason why no published record counts here."""
    if not published:
        return "no published record of this operator"
    same = [r for r in published if r.device.key == device_key]
    if not same:
        return f"measured only on another device: {min(r.device.key for r in published)}"
    if all(r.target_key != target_key for r in same):
        return "measured only for another target"
    return f"never measured under a '{granted.mechanism}' share"


def _chosen(how: How, name: str, default: str, regret: float, reason: str) -> Choice:
    if name == default:
        return Choice(How.NONE, None, regret, f"the untuned default {reason}")
    return Choice(how, name, regret, f"it {reason}")


def _fastest(row: Mapping[str, float], default: str) -> str:
    """The default where it is as fast as any: nothing is gained by another."""
    return min(row, key=lambda name: (row[name], name != default, name))


def _nearest_two(times: Times, units: int) -> list[int]:
    """The measured shares next below and next above `units`, or the two nearest on the one side that there is; none
    when even the nearest is beyond NEAR_FACTOR.
    """
    ordered = sorted(times)
    below = [other for other in ordered if other < units]
    above = [other for other in ordered if other > units]
    pair = [below[-1], above[0]] if below and above else (below[-2:] or above[:2])
    return pair if pair and min(_ratio(other, units) for other in pair) <= NEAR_FACTOR else []


def _ratio(one: int, other: int) -> float:
    return max(one / other, other / one)


def _nearest_record(measured: MeasuredTimes, name: str, units: int) -> TuningRecord | None:
    """Of a chosen schedule: its fastest measurement at the share nearest to `units`."""
    known = {other: row[name] for other, row in measured.choosing.items() if name in row}
    return measured.fastest(name, min(known, key=lambda other: (_ratio(other, units), known[other])))


def _contradiction(own: list[TuningRecord], unit: str) -> str:
    """A remark when published measurements of one schedule at one share lie far apart."""
    by_units: dict[int, list[float]] = {}
    for record in own:
        by_units.setdefault(record.granted.units, []).append(record.median_s)
    for units, secs in sorted(by_units.items()):
        if max(secs) > CONTRADICTION * min(secs):
            where, spread = units_text(units, unit), f"{min(secs) * 1e3:.4g} .. {max(secs) * 1e3:.4g} ms"
            return f"; its measurements at {where} contradict each other ({spread}): measure again"
    return ""
