"""Which schedules go into a bundle: a variant for each share, a robust one, and their known times at each share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from fractune_core.analysis.match import How, Match, find_match, reported_regret
from fractune_core.analysis.validated import MeasuredTimes, Times, ValidatedRecords, choosing_order
from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT, WITH_ATTENTION
from fractune_core.records import UNTUNED, candidate_id
from fractune_core.shares import GrantedShare, Share, units_text

_GAIN = 1e-9
"""a smaller improvement of the worst regret counts as rounding"""
_HARDLY = 0.01
"""A variant is not made if it saves only this part of the model's time at its worst share: noise makes such variants.
Each would be compiled, compared with the model file, and timed at each share."""

Rows = Mapping[str, Mapping[str, Sequence[float]]]
"""seconds at each share, by operator and finalist"""


def robust_for_model(
    times: Mapping[str, Times],
    weights: Mapping[str, int],
    shares: Sequence[int],
    default: Mapping[str, str],
    *,
    reported: Mapping[str, Times] | None = None,
) -> tuple[dict[str, str], float]:
    """A finalist for each operator that minimizes the model's loss at the worst of `shares` (units), and this loss.

    The loss is relative to every operator's best at the share. `times` are for selection: they choose the finalists
    and the worst share. `reported` times of the same finalists and shares give the size of the loss (None = `times`).
    Both, `weights` and `default` (the untuned finalist) are by operator. Operators without a finalist that was
    measured at all shares are left out. The local search starts from each operator's own smallest worst-case regret
    and from the fastest finalists at each share. It changes one operator at a time while that helps, so it is never
    worse than its starts, but not always optimal.
    """
    rows = {op: _measured_at_all(found, shares) for op, found in times.items()}
    rows = {op: row for op, row in rows.items() if row}
    if not rows:
        return {}, 0.0
    fastest = [{op: _fastest(row, place) for op, row in rows.items()} for place in range(len(shares))]
    best = [_sums(chosen, rows, weights)[place] for place, chosen in enumerate(fastest)]
    starts = [{op: _least(row, default.get(op, "")) for op, row in rows.items()}, *fastest]
    found = [_improved(start, rows, weights, best) for start in starts]
    chosen, _ = min(found, key=lambda answer: answer[1])
    sums = _sums(chosen, rows, weights)
    worst = max(range(len(shares)), key=lambda place: sums[place] / best[place])
    shown = rows if reported is None else {op: _measured_at_all(reported[op], shares) for op in rows}
    return chosen, _sums(chosen, shown, weights)[worst] / _sums(fastest[worst], shown, weights)[worst] - 1.0


def _improved(
    start: Mapping[str, str], rows: Rows, weights: Mapping[str, int], best: Sequence[float]
) -> tuple[dict[str, str], float]:
    """Change one operator at a time while the model's worst loss decreases."""
    chosen = dict(start)
    sums = _sums(chosen, rows, weights)
    gained = True
    while gained:
        gained = False
        for op, row in rows.items():
            for name in sorted(row):
                changes = zip(sums, row[name], row[chosen[op]], strict=True)
                other = [held + weights[op] * (new - old) for held, new, old in changes]
                if _worst(other, best) < _worst(sums, best) - _GAIN:
                    chosen[op], sums, gained = name, other, True
    return chosen, _worst(_sums(chosen, rows, weights), best)


def _sums(chosen: Mapping[str, str], rows: Rows, weights: Mapping[str, int]) -> list[float]:
    """Seconds of the model at each share."""
    columns = zip(*([weights[op] * secs for secs in rows[op][name]] for op, name in chosen.items()), strict=True)
    return [sum(column) for column in columns]


def _worst(sums: Sequence[float], best: Sequence[float]) -> float:
    return max(held / ideal for held, ideal in zip(sums, best, strict=True)) - 1.0


def _fastest(row: Mapping[str, Sequence[float]], place: int) -> str:
    return min(row, key=lambda name: (row[name][place], name))


def _least(row: Mapping[str, Sequence[float]], default: str) -> str:
    """The finalist with the smallest worst-case regret; among equals the default."""
    best = [min(secs) for secs in zip(*row.values(), strict=True)]
    return min(row, key=lambda n: (max(t / b for t, b in zip(row[n], best, strict=True)), n != default, n))


def _measured_at_all(times: Times, shares: Sequence[int]) -> dict[str, list[float]]:
    """Times at `shares`, in their order, of the finalists that were measured at all of them."""
    rows = [times.get(share, {}) for share in shares]
    names = set.intersection(*(set(row) for row in rows)) if rows else set()
    return {name: [row[name] for row in rows] for name in names}


@dataclass(frozen=True)
class ValidatedOperator:
    """An operator of a model, and its validations in the log on all devices."""

    workload_hash: str
    weight: int
    validated: ValidatedRecords


@dataclass(frozen=True)
class Deployment:
    """Where the model is to run: one target and some shares of one device."""

    device_key: str
    target_key: str
    granted: Mapping[str, GrantedShare]
    """by share as text"""

    def within(self, wanted: str) -> Deployment:
        """At the shares of a range alone."""
        wide = Share.parse(wanted)
        return replace(self, granted={share: each for share, each in self.granted.items() if wide.spans(share)})

    def measured(self, operator: ValidatedOperator, mechanism: str) -> MeasuredTimes:
        """The operator's validated times on this device for this target."""
        return operator.validated.measured(self.device_key, self.target_key, mechanism)

    def match(self, operator: ValidatedOperator, share: str) -> Match:
        return find_match(operator.validated, self.granted[share], self.device_key, self.target_key)

    def default(self, operator: ValidatedOperator) -> str:
        """Candidate id of the untuned default."""
        return candidate_id(operator.workload_hash, self.target_key, UNTUNED)


@dataclass(frozen=True)
class Variant:
    """A schedule for each operator that has one."""

    name: str
    matches: dict[str, Match]
    """by workload hash; an operator whose match has no record stays untuned"""

    @property
    def traces(self) -> dict[str, str]:
        return {name: match.record.trace for name, match in self.matches.items() if match.record is not None}


def variants_for(
    deployment: Deployment, operators: Sequence[ValidatedOperator], ranges: Sequence[str] = (), *, robust_only: bool
) -> list[Variant]:
    """A variant for each share, one for each range and a robust one, each if those before lose more at the worst of
    its shares, and the untuned one last.
    """
    untuned = Variant(UNTUNED_VARIANT, {})
    robust = robust_variant(ROBUST_VARIANT, deployment, operators)
    if robust_only:
        return [robust, untuned]
    found = [
        Variant(share, {op.workload_hash: deployment.match(op, share) for op in operators})
        for share in deployment.granted
    ]
    if len(found) > 1:
        within = [(each, deployment.within(each)) for each in ranges]
        made = [(place, robust_variant(name, place, operators)) for name, place in within]
        for place, variant in (*made, (deployment, robust)):
            if not _is_needless(variant, place, operators, found):
                found.append(variant)
    return [*found, untuned]


def _is_needless(
    variant: Variant, place: Deployment, operators: Sequence[ValidatedOperator], others: Sequence[Variant]
) -> bool:
    """Whether another one has its schedules, or loses hardly more at the worst share of the place."""
    if any(variant.traces == other.traces for other in others):
        return True
    rows = measured_secs(place, operators, [variant, *others], choosing=True).values()

    def loss(name: str) -> float:
        return max(row.get(name, inf) / min(row.values()) for row in rows)

    is_known = all(variant.name in row and min(row.values()) for row in rows)
    return is_known and any(loss(other.name) <= loss(variant.name) + _HARDLY for other in others)


def with_alternatives(
    deployment: Deployment, alternatives: Sequence[ValidatedOperator], variants: Sequence[Variant]
) -> list[Variant]:
    """Twins of the variants for a share, with the alternatives to their operators that were validated there.

    The whole model is timed with both, so that the operators' own times need not be compared.
    """
    twins = []
    for variant in variants:
        if variant.name not in deployment.granted:
            continue
        matches = {op.workload_hash: deployment.match(op, variant.name) for op in alternatives}
        found = {name: match for name, match in matches.items() if match.record and match.record.implementation}
        if found:
            twins.append(Variant(variant.name + WITH_ATTENTION, {**variant.matches, **found}))
    return twins


def measured_secs(
    deployment: Deployment,
    operators: Sequence[ValidatedOperator],
    variants: Sequence[Variant],
    *,
    choosing: bool = False,
) -> dict[str, dict[str, float]]:
    """Seconds by share, then by variant: the sum over operators of weight x reported median of their schedules.

    With `choosing`, the medians are of the repeats used for selection. Operators that were never measured do not
    count. A variant is absent at a share where one of its schedules was not measured.
    """
    times = {
        share: _times_at(deployment, operators, granted, choosing=choosing)
        for share, granted in deployment.granted.items()
    }
    return {
        share: {
            variant.name: sum(secs)
            for variant in variants
            if (secs := _secs_of(variant, deployment, operators, found)) is not None
        }
        for share, found in times.items()
    }


def _times_at(
    deployment: Deployment, operators: Sequence[ValidatedOperator], granted: GrantedShare, *, choosing: bool
) -> dict[str, Mapping[str, float]]:
    """Seconds by workload hash and candidate, of the measured operators."""
    measured = {op.workload_hash: deployment.measured(op, granted.mechanism) for op in operators}
    times = {name: found.choosing if choosing else found.reported for name, found in measured.items()}
    return {name: found.get(granted.units, {}) for name, found in times.items() if found}


def _secs_of(
    variant: Variant,
    deployment: Deployment,
    operators: Sequence[ValidatedOperator],
    times: Mapping[str, Mapping[str, float]],
) -> list[float] | None:
    """Weighted seconds of each operator that has times; None if one lacks the time of the variant's schedule."""
    secs = []
    for op in operators:
        row = times.get(op.workload_hash)
        if row is None:
            continue
        match = variant.matches.get(op.workload_hash)
        record = match.record if match is not None else None
        found = row.get(deployment.default(op) if record is None else record.candidate_id)
        if found is None:
            return None
        secs.append(op.weight * found)
    return secs


def robust_variant(name: str, deployment: Deployment, operators: Sequence[ValidatedOperator]) -> Variant:
    """The schedules with the smallest worst-case loss of the whole model; empty if no loss is known."""
    shares = sorted({granted.key: granted for granted in deployment.granted.values()}.values(), key=lambda g: g.units)
    choosing = {op.workload_hash: _rows(deployment, op, shares, choosing=True) for op in operators}
    reported = {op.workload_hash: _rows(deployment, op, shares, choosing=False) for op in operators}
    defaults = {op.workload_hash: deployment.default(op) for op in operators}
    weights = {op.workload_hash: op.weight for op in operators}
    chosen, regret = robust_for_model(choosing, weights, range(len(shares)), defaults, reported=reported)
    reason = f"the model loses at most {regret * 100:.1f} % at {_shares_text(shares)}"
    return Variant(
        name,
        {
            op.workload_hash: _robust_match(deployment, op, shares, chosen[op.workload_hash], reason)
            for op in operators
            if chosen.get(op.workload_hash, defaults[op.workload_hash]) != defaults[op.workload_hash]
        },
    )


def _rows(
    deployment: Deployment, operator: ValidatedOperator, shares: Sequence[GrantedShare], *, choosing: bool
) -> Times:
    """Seconds of the operator by index of the share, then by candidate."""
    measured = [deployment.measured(operator, granted.mechanism) for granted in shares]
    times = [found.choosing if choosing else found.reported for found in measured]
    return {
        number: found.get(granted.units, {}) for number, (found, granted) in enumerate(zip(times, shares, strict=True))
    }


def _robust_match(
    deployment: Deployment, operator: ValidatedOperator, shares: Sequence[GrantedShare], candidate: str, reason: str
) -> Match:
    choosing, reported = (_rows(deployment, operator, shares, choosing=each) for each in (True, False))
    regret = reported_regret(candidate, choosing, reported, choosing, deployment.default(operator))
    mechanisms = dict.fromkeys(granted.mechanism for granted in shares)
    own = [record for each in mechanisms for record in deployment.measured(operator, each).by_candidate[candidate]]
    return Match(How.ROBUST, min(own, key=choosing_order), regret, reason)


def _shares_text(shares: Sequence[GrantedShare]) -> str:
    """`1, 2 cores`; with several mechanisms the names of the shares: `mps:25, full`."""
    if len({granted.mechanism for granted in shares}) > 1:
        return ", ".join(granted.share for granted in shares)
    return units_text([granted.units for granted in shares], shares[0].unit)
