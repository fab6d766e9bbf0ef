"""Which candidates are checked for right output and measured again, alone, before a winner is published."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fractune_core.analysis.roofline import Arithmetic
from fractune_core.analysis.validated import choosing_order
from fractune_core.records import Status, TuningRecord

BEST_PER_SHARE = 2
NEGLIGIBLE = 0.01
"""of the model's time: what the validations that are left out may forgo together"""


def finalists(
    best: Mapping[str, Sequence[TuningRecord]],
    earlier: Sequence[TuningRecord],
    untuned: str,
    count: int = BEST_PER_SHARE,
) -> dict[str, str]:
    """Trace by candidate: the untuned default first, then of every share the winner of `earlier` validations and the
    `count` fastest trials.

    `best` holds the fastest trials by share key, fastest first, more than enough of them; `untuned` is the
    candidate id of the untuned default. A candidate that has failed a validation at any share is none again.
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
    """True when there is nothing to measure: every finalist has a validation at every share (keys), or the untuned
    default is the only one and was never timed anywhere.

    Where the default was timed at another share, what it takes at these is part of what the model's variants take.
    """
    if not validations and len(chosen) == 1:
        return True
    held = {(record.candidate_id, record.granted.key) for record in validations}
    return all((candidate, share) in held for share in shares for candidate in chosen)


@dataclass(frozen=True)
class Outlook:
    """What validating an operator's finalists can still bring at one share. Seconds of the model's run time."""

    published_s: float | None
    """weight x time of the fastest schedule that was validated; None when none was"""
    promised_s: float
    """weight x time of the fastest trial that was not validated; infinite when there is none"""

    @property
    def known_s(self) -> float:
        """The operator's part of the model's time, as far as it is known."""
        known = self.promised_s if self.published_s is None else min(self.promised_s, self.published_s)
        return known if known < math.inf else 0.0

    @property
    def gain_s(self) -> float:
        """The most that there is to gain: a trial that looks fastest of many looks faster than it is."""
        return math.inf if self.published_s is None else max(0.0, self.published_s - self.promised_s)


def worth_validating(outlooks: Mapping[str, Outlook]) -> set[str]:
    """The operators, of those in `outlooks` at one share, whose finalists can matter to the model.

    Left out are those with the least to gain, as many as could together gain a hundredth of the model's time at most:
    they keep the schedule that was validated before. What they forgo does not add up from job to job, because it is
    counted from what is published. Without a validation nothing tells how slow the untuned default is, however fast
    a trial was: such an operator is always worth it.
    """
    left_s = NEGLIGIBLE * sum(each.known_s for each in outlooks.values())
    worth = set(outlooks)
    for name in sorted(outlooks, key=lambda name: outlooks[name].gain_s):
        left_s -= outlooks[name].gain_s
        if left_s < 0:
            break
        worth.remove(name)
    return worth


def outlook(weight: int, best: Sequence[TuningRecord], earlier: Sequence[TuningRecord], share: str) -> Outlook:
    """Of an operator that occurs `weight` times: by its fastest trials at a share (key) and its earlier validations."""
    held = [record for record in earlier if record.granted.key == share]
    known = {record.candidate_id for record in held}
    published = min((record for record in held if record.status is Status.OK), key=choosing_order, default=None)
    promised = [record.median_s for record in best if record.candidate_id not in known]
    published_s = None if published is None else weight * published.median_s
    return Outlook(published_s, weight * min(promised, default=math.inf))


def tuned_part(weights: Mapping[str, int], arithmetic: Mapping[str, Arithmetic], tuned: Collection[str]) -> float:
    """The part of a model's work that the `tuned` operators do, from 0 to 1; operators by workload hash.

    An operator's work is how often it runs (`weights`) times its operations; where these are not known, as of a copy,
    the bytes that it moves. Without either of any operator, one that is tuned counts as all.
    """
    work = {name: weight * _work(arithmetic.get(name)) for name, weight in weights.items()}
    whole = sum(work.values())
    if whole == 0:
        return 1.0 if tuned else 0.0
    return sum(work[name] for name in tuned) / whole


def _work(known: Arithmetic | None) -> float:
    return 0.0 if known is None else known.flops or known.io_bytes
