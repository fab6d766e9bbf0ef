"""Donors of schedules for a new operator: well measured operators of the same kind, at the same share if possible."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Protocol, TypeVar

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
        chosen.values(),
        key=lambda each: (each.workload_hash != workload_hash, each.operator != operator, -each.trials),
    )
    return ranked[:DONORS_AT_MOST]


def _rank(donor: PossibleDonor, shares: Collection[str]) -> tuple[bool, int]:
    return donor.share_key in shares, donor.trials
