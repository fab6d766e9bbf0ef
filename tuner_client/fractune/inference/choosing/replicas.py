"""The number of replicas of a model, and of their threads, that answer the most requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fractune.inference.choosing.requested_threads import check_cpus
from fractune.inference.choosing.under_limit import (
    choices_by_threads,
    limit_of,
    limit_text,
    three_digits,
    times_by_threads,
)
from fractune.inference.choosing.variants import VariantChoice, choose_variant
from fractune.inference.cpu import ShareHere
from fractune_core.analysis.cpu_limits.limits import POOL_COST_S, SPIN_S, Service, loop_per_s, threads_text
from fractune_core.analysis.cpu_limits.prediction import predictable
from fractune_core.analysis.match import Policy
from fractune_core.files.bundles import Bundle
from fractune_core.shares import units_text

_EQUAL = 0.02
"""Predicted rates that differ by less count as equal"""


@dataclass(frozen=True)
class ReplicaChoice:
    """A division of a share."""

    replicas: int
    threads: int
    """of a replica"""
    choice: VariantChoice


@dataclass(frozen=True)
class _Division:
    replicas: int
    threads: int
    per_s: float
    """requests, all replicas in a loop"""

    def __str__(self) -> str:
        return f"{replicas_text(self.replicas)} of {threads_text(self.threads)}"


def choose_replicas(
    bundle: Bundle, here: ShareHere, policy: Policy, replicas: int | None, threads: int | None = None
) -> ReplicaChoice:
    """The division with the most requests a second in a loop, by the bundle's times; of equal ones the fewest threads,
    and then the fewest replicas. With `replicas` or `threads` it has so many. Without a time each whole core gets a
    thread. Raises ShareUnavailable where the share has fewer CPUs than `threads`.
    """
    if threads is not None:
        check_cpus(here, threads)
    choices = choices_by_threads(bundle, here, policy)
    times_s = times_by_threads(bundle, here.mechanism, choices)
    taken_s = {count: secs for count, secs in times_s.items() if threads in {None, count}}
    found = list(_divisions(here, taken_s, replicas))
    if not found:
        return _without_times(bundle, here, policy, replicas, threads)
    good_per_s = (1 - _EQUAL) * max(each.per_s for each in found)
    good = [each for each in found if each.per_s >= good_per_s]
    best = min(good, key=lambda each: (each.replicas * each.threads, each.replicas))
    others = sorted((each for each in found if each is not best), key=lambda each: -each.per_s)
    then = "the bundle has times for no other division here"
    if others:
        then = f"next best with {others[0]}: {three_digits(others[0].per_s)}"
    reason = f"{_where(here)}, predicted best with {best}: {three_digits(best.per_s)} requests/s in a loop; {then}"
    return ReplicaChoice(best.replicas, best.threads, replace(choices[best.threads], reason=reason))


def replicas_text(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"


def _divisions(here: ShareHere, times_s: dict[int, float], replicas: int | None) -> Iterator[_Division]:
    """All that fit, or those with `replicas`; replicas of one thread always fit, as they may share CPUs."""
    cores = here.units if here.quota is None else len(here.cpus)
    limit = None if here.quota is None else limit_of(here.quota)
    for threads, secs in times_s.items():
        # Each request is handed over to a thread of its replica, also where that is the only one.
        service = Service(threads, (secs + POOL_COST_S,), threads * secs, spin_s=SPIN_S)
        for number in [replicas] if replicas else range(1, cores // threads + 1):
            if threads > 1 and threads * number > cores:
                continue
            if limit is None:
                yield _Division(number, threads, min(number, cores // threads) / service.mean_s)
            elif predictable(service, limit, number):
                yield _Division(number, threads, min(loop_per_s(service, limit, number), cores / service.mean_s))


def _without_times(
    bundle: Bundle, here: ShareHere, policy: Policy, replicas: int | None, threads: int | None
) -> ReplicaChoice:
    number = replicas or max(1, here.units // (threads or 1))
    threads = threads or max(1, here.units // number)
    choice = choose_variant(bundle, threads, policy, here.mechanism)
    taken = f"{replicas_text(number)} of {threads_text(threads)} {_where(here)}, because the bundle has no times there"
    return ReplicaChoice(number, threads, replace(choice, reason=f"{choice.reason}; {taken}"))


def _where(here: ShareHere) -> str:
    if here.quota is None:
        return f"on {units_text(here.units, here.unit)}"
    return f"under a limit of {limit_text(here.quota)}"
