"""The variant and the number of threads under a CPU limit, by predictions from the bundle's times without one."""

from __future__ import annotations

from collections.abc import Mapping

from fractune.inference.choosing.variants import VariantChoice, choose_variant
from fractune.inference.cpu import ShareHere
from fractune_core.analysis.cpu_limits.limits import PERIOD_US, CpuLimit, service_of_time, threads_text
from fractune_core.analysis.cpu_limits.prediction import Latency, by_latency, by_rate, paced_rate_per_s, predictable
from fractune_core.analysis.match import Policy
from fractune_core.files.bundles import Bundle
from fractune_core.host.cgroups import Quota
from fractune_core.served import LOAD_TEXT, ServiceGoal


def choose_under_limit(
    bundle: Bundle, here: ShareHere, quota: Quota, policy: Policy, goal: ServiceGoal
) -> tuple[VariantChoice, int] | None:
    """The best variant and its number of threads, of the numbers at which the bundle has a variant or a time; no time
    is interpolated. None where no number has a time that predictions hold for.
    """
    limit = limit_of(quota)
    choices = choices_by_threads(bundle, here, policy)
    services = [
        service
        for threads, secs in times_by_threads(bundle, here.mechanism, choices).items()
        if predictable(service := service_of_time(threads, secs), limit)
    ]
    if not services:
        return None
    if goal == "throughput":
        found = [(n, f"{three_digits(per_s)} requests/s") for n, per_s in by_rate(services, limit)]
        load = "in a loop"
    else:
        found = [(each.threads, _latency_text(each)) for each in by_latency(services, limit)]
        load = f"at {three_digits(paced_rate_per_s(services, limit))} requests/s ({LOAD_TEXT})"
    (threads, best), *others = found
    then = "the bundle has times for no other number of threads here"
    if others:
        then = f"next best with {threads_text(others[0][0])}: {others[0][1]}"
    reason = f"under a limit of {limit_text(quota)}, predicted best with {threads_text(threads)}: {best} {load}; {then}"
    choice = choices[threads]
    return VariantChoice(choice.variant, choice.how, choice.regret, reason), threads


def limit_of(quota: Quota) -> CpuLimit:
    """The limit for predictions."""
    return CpuLimit(quota.millicores, quota.period_us, quota.burst_us)


def limit_text(quota: Quota) -> str:
    """As Kubernetes writes it, `1500m`; with its period if that is not the usual one."""
    period = "" if quota.period_us == PERIOD_US else f" in periods of {quota.period_us / 1e3:g} ms"
    return f"{quota.millicores}m{period}"


def choices_by_threads(bundle: Bundle, here: ShareHere, policy: Policy) -> dict[int, VariantChoice]:
    """By number of threads, as far as the process has CPUs for them; only variants that were tuned or timed there."""
    timed = bundle.choosing(here.mechanism)
    numbers = {*timed, *bundle.units(here.mechanism).values()}
    choices = {n: choose_variant(bundle, n, policy, here.mechanism) for n in sorted(numbers) if n <= len(here.cpus)}
    return {n: choice for n, choice in choices.items() if choice.exact or n in timed}


def times_by_threads(bundle: Bundle, mechanism: str, choices: Mapping[int, VariantChoice]) -> dict[int, float]:
    """Seconds of an inference: of the whole model if it was timed at each of these numbers, else of its operators."""
    whole, operators = bundle.timed(mechanism), bundle.measured(mechanism)
    if choices and choices.keys() <= whole.keys():
        return {n: whole[n] for n in choices}
    rows = {n: operators.get(n, {}) for n in choices}
    return {n: rows[n][choice.variant] for n, choice in choices.items() if choice.variant in rows[n]}


def _latency_text(latency: Latency) -> str:
    return f"p50 {three_digits(1e3 * latency.p50_s)} ms, p99 {three_digits(1e3 * latency.p99_s)} ms"


def three_digits(number: float) -> str:
    """Three that count, as predictions have no more."""
    return f"{float(f'{number:.3g}'):g}"
