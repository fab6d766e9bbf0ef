"""Knee: the share beyond which a model hardly gains, from times measured at a few shares.

Three rules make the curve:

1. A larger share is never slower, because a model may leave units unused. Where measured times rise, the best time of
   the shares up to there counts (the running minimum). This rule alone handles curves that are flat or not monotone.
2. Between two measured shares, neither the seconds nor the unit-seconds (units x seconds) leave the range of the two.
   Beyond the measured shares, the time lies between perfect scaling and no gain. These limits are the band.
3. Within the band, the time is the geometric mean of the middle of the band and the fit t(r) = a / (r + c) + d through
   three or more shares. The fit alone promises too much at small shares, the middle too little.

Units are whole numbers of cores, SMs or slices; times are seconds. The errors are in
`docs/decisions/31-choice-of-a-schedule.md`.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from fractune_core.errors import BadRequest

FEWEST_TO_FIT = 3
"""shares; with two the band is all there is, with one there is nothing"""
FEWEST_TO_LEAVE_OUT = 4
"""shares; with fewer, leaving one out leaves too few to fit"""
FLAT_WITHIN = 0.05
"""Gains up to this fraction are within what two timings of the same thing may differ by"""

_COARSE = tuple(10 ** (step / 10) for step in range(-20, 31))
_FINE = tuple(10 ** (step / 200) for step in range(-20, 21))
"""The grid for (r1 + c) / r1 of the fit, r1 being the smallest share: coarse, then factors around the best"""


class CurveKind(StrEnum):
    FITTED = "fitted"
    """three shares or more, faster at larger ones"""
    FLAT = "flat"
    """three shares or more, none of them faster than the smallest by more than FLAT_WITHIN"""
    UNEVEN = "uneven"
    """three shares or more, one of them slower than a smaller one by more than FLAT_WITHIN"""
    BOUND = "bound"
    """two shares: no fit, only the band"""
    ONE_POINT = "one point"
    """one share: no time at other shares is known"""


@dataclass(frozen=True)
class Hyperbola:
    """t(r) = a / (r + c) + d: seconds at r units; a and d are not negative, r + c is positive at measured shares."""

    a: float
    """seconds x units"""
    c: float
    """units"""
    d: float
    """seconds that no number of units takes away"""

    def secs_at(self, units: int) -> float:
        """Infinite where r + c is not positive, which only happens below the smallest measured share."""
        return self.a / (units + self.c) + self.d if units + self.c > 0 else math.inf


@dataclass(frozen=True)
class Curve:
    """How long something takes at any number of units. Made by `fit_curve`."""

    measured: Mapping[int, float]
    """seconds by units as measured, in ascending order of units"""
    kind: CurveKind
    fit: Hyperbola | None
    """None with fewer than three shares"""
    error: float | None
    """Expected mean relative error between measured shares, as a fraction; None = fewer than four, none between.

    With four shares or more, each inner share is left out once and predicted from the rest. With two or three, the fit
    meets every point, so its residuals show nothing. Then the error is half the width of the band, averaged over the
    shares between those measured, or the residual of the running minimum if that is larger.
    """

    def secs_at(self, units: int) -> float:
        """Seconds at `units`; never more at more units. At a measured share, the best time measured up to there.

        With two shares this is the middle of the band; `bounds_at` has its limits. Raises BadRequest for fewer than one
        unit, and with one measured share for any other share.
        """
        _check_units(units)
        if units in self.best:
            return self.best[units]
        if self.kind is CurveKind.ONE_POINT:
            only = next(iter(self.measured))
            raise BadRequest(f"{only} units alone do not predict the time at {units} units; measure another share")
        low, high = _band(self.best, units)
        middle = math.sqrt(low) * math.sqrt(high)
        if self.fit is None:
            return _clamp(middle, low, high)
        return _clamp(math.sqrt(_clamp(self.fit.secs_at(units), low, high)) * math.sqrt(middle), low, high)

    def bounds_at(self, units: int) -> tuple[float, float]:
        """The fewest and the most seconds at `units` that the measured shares allow.

        Between two shares: no more than at the smaller, no less than at the larger, and unit-seconds between theirs.
        Beyond the largest: from perfect scaling to no gain. Below the smallest: from no loss to perfect scaling.
        Where speed-up is more than proportional beyond the measured shares (caches, memory), this band is too narrow.
        Raises BadRequest for fewer than one unit.
        """
        _check_units(units)
        return _band(self.best, units)

    @cached_property
    def best(self) -> dict[int, float]:
        """Seconds by measured units: the running minimum from the smallest share on."""
        return dict(zip(self.measured, itertools.accumulate(self.measured.values(), min), strict=True))


@dataclass(frozen=True)
class Knee:
    """The smallest share that is nearly as fast as the whole device."""

    units: int | None
    """None = one share measured: no answer. With two shares, the most that can be needed, as `most`"""
    units_total: int
    slack: float
    """how much slower than the whole is allowed, as a fraction"""
    secs: float | None
    """at `units`; None without an answer"""
    secs_whole: float | None
    """at all units, or the best measured where all units were slower than fewer; None without an answer"""
    is_measured: bool
    """whether `secs` was measured"""
    is_whole_measured: bool
    """whether the whole device was measured"""
    fewest: int | None
    """the knee if the band's fastest end held at every share and its slowest end at the whole"""
    most: int | None
    """the opposite: no share above this one can be needed. `fewest <= units <= most`"""
    reason: str


def fit_curve(points: Mapping[int, float]) -> Curve:
    """The curve through `points`, seconds by units, in any order.

    Three or more points are fitted; two give a bound (CurveKind.BOUND); one gives only itself. Raises BadRequest for no
    points, for a point with fewer than one unit, and for a time that is not positive and finite.
    """
    if not points:
        raise BadRequest("no share was measured; a curve needs three, or two for a bound")
    for units, secs in points.items():
        _check_units(units)
        if not (math.isfinite(secs) and secs > 0):
            raise BadRequest(f"the time at {units} units is {secs} s; it must be positive and finite: measure it again")
    measured = {units: points[units] for units in sorted(points)}
    curve = _curve(measured)
    return replace(curve, error=_error(curve))


def find_knee(curve: Curve, units_total: int, slack: float) -> Knee:
    """The smallest number of units at which `curve` is within `slack` (a fraction) of its time at `units_total`.

    The time at the whole device counts, measured or predicted, and not the asymptote d of the fit. No device has
    infinitely many units, and d is the least certain number of the fit. Where the whole was slower than fewer units,
    the best measured time counts.

    Shares below the smallest measured share are never the answer, because nothing is known of them. With two shares the
    answer is the bound `most`. It is within the slack even if everything between scales as badly as the band allows,
    and the whole as well as it allows. At worst it gives away too much, never too little.

    Raises BadRequest for a negative or infinite slack, or when a larger share than `units_total` was measured.
    """
    if not (math.isfinite(slack) and slack >= 0):
        raise BadRequest(f"slack {slack}: it must be 0 or more; write 0.1 for 10 %")
    if max(curve.measured) > units_total:
        raise BadRequest(
            f"measured at {max(curve.measured)} units of a device that has {units_total}; check the shares"
        )
    if curve.kind is CurveKind.ONE_POINT:
        return _no_knee(curve, units_total, slack)
    low, high = curve.bounds_at(units_total)
    shares = range(min(curve.measured), units_total + 1)
    fewest = next(r for r in shares if r == units_total or curve.bounds_at(r)[0] <= high * (1 + slack))
    most = next(r for r in shares if r == units_total or curve.bounds_at(r)[1] <= low * (1 + slack))
    secs_whole = curve.secs_at(units_total)
    units = most
    if curve.kind is not CurveKind.BOUND:
        units = next(r for r in shares if curve.secs_at(r) <= secs_whole * (1 + slack))
    return Knee(
        units=units,
        units_total=units_total,
        slack=slack,
        secs=curve.secs_at(units),
        secs_whole=secs_whole,
        is_measured=units in curve.measured,
        is_whole_measured=units_total in curve.measured,
        fewest=fewest,
        most=most,
        reason=_reason(curve, units_total, slack, units, (fewest, most)),
    )


def _no_knee(curve: Curve, units_total: int, slack: float) -> Knee:
    only = next(iter(curve.measured))
    return Knee(
        units=None,
        units_total=units_total,
        slack=slack,
        secs=None,
        secs_whole=None,
        is_measured=False,
        is_whole_measured=only == units_total,
        fewest=None,
        most=None,
        reason=f"one share measured, {only} of {units_total} units: a knee needs three, or two for a bound",
    )


def _curve(measured: dict[int, float]) -> Curve:
    """Without its error."""
    if len(measured) < FEWEST_TO_FIT:
        return Curve(measured, CurveKind.ONE_POINT if len(measured) == 1 else CurveKind.BOUND, None, None)
    bare = Curve(measured, CurveKind.FITTED, None, None)
    kind = CurveKind.FITTED
    if next(iter(measured.values())) <= min(measured.values()) * (1 + FLAT_WITHIN):
        kind = CurveKind.FLAT
    elif any(secs > bare.best[units] * (1 + FLAT_WITHIN) for units, secs in measured.items()):
        kind = CurveKind.UNEVEN
    return Curve(measured, kind, _fit_hyperbola(bare.best), None)


def _error(curve: Curve) -> float | None:
    units = list(curve.measured)
    if len(units) >= FEWEST_TO_LEAVE_OUT:
        return statistics.fmean(_error_without(curve.measured, each) for each in units[1:-1])
    between = [each for each in range(units[0], units[-1]) if each not in curve.measured]
    if not between:
        return None
    half_band = statistics.fmean(math.sqrt(high / low) - 1 for low, high in map(curve.bounds_at, between))
    return max(half_band, statistics.fmean(secs / curve.best[each] - 1 for each, secs in curve.measured.items()))


def _error_without(measured: Mapping[int, float], units: int) -> float:
    rest = _curve({each: secs for each, secs in measured.items() if each != units})
    return abs(rest.secs_at(units) / measured[units] - 1)


def _band(best: Mapping[int, float], units: int) -> tuple[float, float]:
    """Seconds; see `Curve.bounds_at`."""
    below = max((each for each in best if each <= units), default=None)
    above = min((each for each in best if each >= units), default=None)
    if below is None or above is None:
        nearest = max(best) if above is None else min(best)
        low, high = sorted((best[nearest], best[nearest] * nearest / units))
        return low, high
    if below == above:
        return best[units], best[units]
    # Speed-up that is more than proportional (the smaller share starves for memory, say) swaps the two.
    cheap, dear = sorted((best[below] * below / units, best[above] * above / units))
    return max(best[above], cheap), min(best[below], dear)


def _fit_hyperbola(best: Mapping[int, float]) -> Hyperbola:
    """Least squares of the relative errors, with a and d not negative; c from a grid, so always the same answer."""
    scale, first = max(best.values()), min(best)
    times = {units: secs / scale for units, secs in best.items()}
    shape = min(_COARSE, key=lambda x: _with_offset(times, first * (x - 1))[0])
    fine = [_with_offset(times, first * (shape * x - 1)) for x in _FINE]
    _, fit = min(fine, key=lambda each: each[0])
    return Hyperbola(fit.a * scale, fit.c, fit.d * scale)


def _with_offset(times: Mapping[int, float], c: float) -> tuple[float, Hyperbola]:
    """The sum of squares and the best a and d for this c, from the normal equations of a * u + d * v = 1."""
    us = [1 / ((units + c) * secs) for units, secs in times.items()]
    vs = [1 / secs for secs in times.values()]
    uu, uv, vv = _dot(us, us), _dot(us, vs), _dot(vs, vs)
    determinant = uu * vv - uv * uv
    # If the best a or d is negative, the best allowed fit has a zero there.
    answers = [(sum(us) / uu, 0.0), (0.0, sum(vs) / vv)]
    if determinant > 0:
        answers.append(((sum(us) * vv - sum(vs) * uv) / determinant, (uu * sum(vs) - uv * sum(us)) / determinant))
    fits = [
        (sum((a * u + d * v - 1) ** 2 for u, v in zip(us, vs, strict=True)), Hyperbola(a, c, d))
        for a, d in answers
        if a >= 0 and d >= 0
    ]
    return min(fits, key=lambda each: each[0])


def _dot(xs: Sequence[float], ys: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(xs, ys, strict=True))


def _reason(curve: Curve, units_total: int, slack: float, units: int, span: tuple[int, int]) -> str:
    """One sentence: the knee, and how certain it is."""
    fewest, most = span
    of = f"{units} of {units_total} units"
    if curve.kind is CurveKind.BOUND and fewest != most:
        return (
            f"two shares measured: at most {of} are needed and at least {fewest}; measure one between for an estimate"
        )
    within = f"within {slack * 100:.1f} %"
    loss = f"{(curve.secs_at(units) / curve.secs_at(units_total) - 1) * 100:.1f} % slower"
    how = "measured" if {units, units_total} <= curve.measured.keys() else "predicted"
    if units == units_total:
        text = f"gains up to the whole: no smaller share is {within} of it"
    elif units == min(curve.measured):
        text = f"{of}: the smallest share measured is {within} of the whole ({how}: {loss})"
    else:
        text = f"{of}: the fewest {within} of the whole ({how}: {loss})"
    return text + _notes(curve, units_total)


def _notes(curve: Curve, units_total: int) -> str:
    notes = ""
    if curve.kind is CurveKind.FLAT:
        notes += "; the curve is flat"
    slower = [each for each, secs in curve.measured.items() if secs > curve.best[each] * (1 + FLAT_WITHIN)]
    if slower:
        notes += f"; slower at {', '.join(map(str, slower))} units than at fewer, which counts as no gain"
    if units_total not in curve.measured:
        notes += f"; the whole was not measured, at most {max(curve.measured)} units"
    return notes


def _check_units(units: int) -> None:
    if units < 1:
        raise BadRequest(f"a share of {units} units: it must have at least one")


def _clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
