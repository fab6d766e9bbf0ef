"""Which candidates are checked for correct output and measured again, alone, before a winner is published."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fractune_core.analysis.roofline import Arithmetic
from fractune_core.analysis.validated import choosing_order
from fractune_core.records import Status, TuningRecord

DONORS_AT_MOST = 6
TRIALS_AT_LEAST = 16
"""an operator with fewer trials has no schedules worth transferring"""


class PossibleDonor(Protocol):
    """Number of good trials of an operator at one share."""

    @property
    def workload_hash(self) -> str: ...
    @property
    def share_key(self) -> str: ...
    @property
    def operator(self) -> str: ...
    @property
    def trials(self) -> int: ...


D = TypeVar("D", bound=PossibleDonor)


def operator_kind(operator: str) -> str:
    """The kind of the operator's main computation, by its name: `conv2d` for `fused_conv2d3_add2_relu2`.

    The label only saves work: the tuner tries whether a schedule fits.
    """
    return re.sub(r"\d*(_.*)?$", "", operator.removeprefix("fused_"))


def choose_donors(known: Iterable[D], operator: str, workload_hash: str, shares: Collection[str]) -> list[D]:
    """At most one donor for each workload, preferably at one of `shares` (share keys).

    The operator itself comes first if it was measured at other shares. Then come operators of the same name, which are
    the same layers at other shapes of a model, then those with the most trials.
    """
    chosen: dict[str, D] = {}
    for each in known:
        own = each.workload_hash == workload_hash
        if operator_kind(each.operator) != operator_kind(operator) or (own and each.share_key in shares):
            continue
        best = chosen.get(each.workload_hash)
        if each.trials >= TRIALS_AT_LEAST and (best is None or _rank(each, shares) > _rank(best, shares)):
            chosen[each.workload_hash] = each
    ranked = sorted(
        chosen.values(), key=lambda each: (each.workload_hash != workload_hash, each.operator != operator, -each.trials)
    )
    return ranked[:DONORS_AT_MOST]


def _rank(donor: PossibleDonor, shares: Collection[str]) -> tuple[bool, int]:
    return donor.share_key in shares, donor.trials


BEST_PER_SHARE = 2
SHORT_REPEATS_MS = {0.005: 0.5, 0.05: 2.0}
"""how long a repeat is of an operator that takes less than this part of the model's time"""
FIRST_REPEAT_MS = 2.0
"""the same of a first candidate, before anything is known of the model's time"""
NEGLIGIBLE = 0.01
"""part of the model's time that all skipped validations together may forgo"""


def finalists(
    best: Mapping[str, Sequence[TuningRecord]],
    earlier: Sequence[TuningRecord],
    untuned: str,
    count: int = BEST_PER_SHARE,
) -> dict[str, str]:
    """Trace by candidate: the untuned default, then for every share the winner of `earlier` validations and the `count`
    fastest trials.

    `best` holds more than enough of the fastest trials by share key, fastest first. `untuned` is the candidate id of
    the untuned default. A candidate that failed a validation at any share is never a finalist again.
    """
    refused = {record.candidate_id for record in earlier if record.status is not Status.OK}
    chosen = {untuned: ""}
    for share, records in best.items():
        held = [record for record in earlier if record.granted.key == share and record.candidate_id not in refused]
        winner = min(held, key=choosing_order, default=None)
        fit = [record for record in records if record.candidate_id not in refused][:count]
        chosen.update({record.candidate_id: record.trace for record in [*([winner] if winner else []), *fit]})
    return chosen


def is_settled(chosen: Collection[str], validations: Sequence[TuningRecord], shares: Iterable[str]) -> bool:
    """Whether nothing is to be measured: every finalist has a validation at every share (keys), or the untuned default
    is the only finalist and was never timed.

    A default that was timed at another share is measured, because the times of the model's variants include it.
    """
    if not validations and len(chosen) == 1:
        return True
    held = {(record.candidate_id, record.granted.key) for record in validations}
    return all((candidate, share) in held for share in shares for candidate in chosen)


@dataclass(frozen=True)
class Outlook:
    """The possible gain of validating an operator's finalists at one share. Seconds of the model's run time."""

    published_s: float | None
    """weight x time of the fastest validated schedule; None if there is none"""
    promised_s: float
    """weight x time of the fastest trial without a validation; infinite if there is none"""

    @property
    def known_s(self) -> float:
        """The operator's part of the model's time; 0 if unknown."""
        known = self.promised_s if self.published_s is None else min(self.promised_s, self.published_s)
        return known if known < math.inf else 0.0

    @property
    def gain_s(self) -> float:
        """Upper bound of the gain: the fastest of many trials looks faster than it is."""
        return math.inf if self.published_s is None else max(0.0, self.published_s - self.promised_s)


def worth_validating(outlooks: Mapping[str, Outlook]) -> set[str]:
    """The operators in `outlooks` at one share whose finalists can matter to the model.

    The operators with the smallest gains are skipped, as many as could together gain at most NEGLIGIBLE of the model's
    time. They keep the schedule that was validated before. The forgone gains do not add up from job to job, because
    they are relative to published schedules. An operator without a validation is never skipped: how slow
    its untuned default is, is unknown.
    """
    left_s = NEGLIGIBLE * sum(each.known_s for each in outlooks.values())
    worth = set(outlooks)
    for name in sorted(outlooks, key=lambda name: outlooks[name].gain_s):
        left_s -= outlooks[name].gain_s
        if left_s < 0:
            break
        worth.remove(name)
    return worth


def short_repeats_ms(outlooks: Mapping[str, Outlook]) -> dict[str, float]:
    """How long a repeat is of the small operators in `outlooks` at one share, by name. Their times need not be exact.
    Their errors are independent: the sum of many is as exact as that of a few large ones.
    """
    whole_s = sum(each.known_s for each in outlooks.values())
    parts = {name: each.known_s / whole_s for name, each in outlooks.items() if each.known_s > 0}
    lengths_ms = {name: [ms for below, ms in SHORT_REPEATS_MS.items() if part < below] for name, part in parts.items()}
    return {name: min(found) for name, found in lengths_ms.items() if found}


def outlook(weight: int, best: Sequence[TuningRecord], earlier: Sequence[TuningRecord], share: str) -> Outlook:
    """The outlook of an operator that occurs `weight` times, from its fastest trials at a share (key) and its earlier
    validations.
    """
    held = [record for record in earlier if record.granted.key == share]
    known = {record.candidate_id for record in held}
    published = min((record for record in held if record.status is Status.OK), key=choosing_order, default=None)
    promised = [record.median_s for record in best if record.candidate_id not in known]
    published_s = None if published is None else weight * published.median_s
    return Outlook(published_s, weight * min(promised, default=math.inf))


def tuned_part(weights: Mapping[str, int], arithmetic: Mapping[str, Arithmetic], tuned: Collection[str]) -> float:
    """The part of a model's work in the `tuned` operators, from 0 to 1; operators by workload hash.

    The work of an operator is its weight times its operations or, if these are unknown or 0 as of a copy, the bytes
    that it moves. If nothing is known of any operator, a single tuned one counts as all.
    """
    work = {name: weight * _work(arithmetic.get(name)) for name, weight in weights.items()}
    whole = sum(work.values())
    if whole == 0:
        return 1.0 if tuned else 0.0
    return sum(work[name] for name in tuned) / whole


def _work(known: Arithmetic | None) -> float:
    return 0.0 if known is None else known.flops or known.io_bytes
