"""What runs a bundle at the share of a process: rules in the order of their trust, and the first answer wins."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fractune_core.analysis.limit_prediction import Latency, by_latency, by_rate, paced_rate_per_s, predictable
from fractune_core.analysis.match import DEFAULT_POLICY, Choice, How, Policy, choose, choose_over
from fractune_core.cpu_limits import PERIOD_US, POOL_COST_S, CpuLimit, service_of_time, threads_text
from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import ONNX_RUNTIME, OURS, Compared, Runtime
from fractune_core.host.cpus import Quota
from fractune_core.names import UNTUNED_VARIANT, WITH_GRAPHS
from fractune_core.served import LOAD_TEXT, Served, ServiceGoal
from fractune_core.share_kinds import CPU, kind_of
from fractune_core.shares import Share, units_text
from fractune_runtime.cpu import ShareHere

TINY_S = 1e-3
"""A hand-over to a pool is a small part of a longer call. There a disturbed measurement must not take the pool away"""
_BUILDS = {ONNX_RUNTIME: ("onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")}
"""other packages that hold a runtime"""


@dataclass(frozen=True)
class VariantChoice:
    """The answer: a variant, its kind of match with the share, the measured loss, and its threads."""

    variant: str
    how: How
    regret: float
    """worst relative loss against the best known at the shares considered; not a number = not measured"""
    reason: str
    threads: int
    """of the host that run it; the code around a GPU's kernels needs one"""

    @property
    def exact(self) -> bool:
        """tuned or measured at exactly the number of units here"""
        return self.how is How.EXACT

    @property
    def is_last_resort(self) -> bool:
        """the untuned variant, and not because it was measured to be the fastest: nothing tuned fits"""
        return self.variant == UNTUNED_VARIANT and math.isnan(self.regret)


@dataclass(frozen=True)
class _Asked:
    """What the rules are asked for: a variant at `units` of the share."""

    bundle: Bundle
    here: ShareHere
    units: int
    policy: Policy
    goal: ServiceGoal
    threads: int | None
    """that the caller asks for"""

    @cached_property
    def by_operators(self) -> VariantChoice:
        return choose_variant(self.bundle, self.units, self.policy, self.here.mechanism)


def match_share(
    bundle: Bundle, here: ShareHere, policy: Policy, goal: ServiceGoal, threads: int | None = None
) -> tuple[VariantChoice, ShareHere]:
    """The variant and the threads for the share, and the share. Where the number of threads is what was chosen, it is
    the number of the share's units too. Raises ShareUnavailable where the share has fewer CPUs than `threads`.
    """
    asked = _Asked(bundle, here, here.units, policy, goal, threads)
    if choice := _first(_BY_THREADS, asked):
        return choice, replace(here, units=choice.threads)
    choice = _at_units(asked)
    if here.quota is not None:
        counted = f"the limit of {limit_text(here.quota)} counts as {units_text(here.units, here.unit)}"
        reason = f"{choice.reason}; {counted}, because the bundle has no times to predict its effect"
        choice = replace(choice, reason=reason)
    return choice, here


def _requested(asked: _Asked) -> VariantChoice | None:
    """The variant for as many whole cores as threads are requested."""
    if asked.threads is None:
        return None
    check_cpus(asked.here, asked.threads)
    choice = choose_variant(asked.bundle, asked.threads, asked.policy, asked.here.mechanism)
    choice = replace(_within_range(asked) or choice, threads=asked.threads)
    return replace(choice, reason=f"{choice.reason}; {threads_text(asked.threads)}, as requested")


def _steps_under_limit(asked: _Asked) -> VariantChoice | None:
    """The variant of a decoder for two threads, under a limit between one core and two. Its steps follow each other
    without a rest, and take both threads or one (`runner.Pace`); times of requests with pauses say nothing of them.
    """
    quota = asked.here.quota
    if quota is None or not 1 < quota.cores < 2 <= len(asked.here.cpus) or not asked.bundle.manifest.get("caches"):
        return None
    choice = _at_units(replace(asked, units=2))
    if choice.threads == 1:
        return choice
    steps = "steps of a decoder take both threads while its budget lasts, else one"
    return replace(choice, reason=f"{choice.reason}; under a limit of {limit_text(quota)}, {steps}")


def _timed_under_limit(asked: _Asked) -> VariantChoice | None:
    """The best of times under the very limit of this process, if it has a CPU for each thread."""
    quota = asked.here.quota
    if quota is None:
        return None
    for limit, served in asked.bundle.under_limits:
        same = (limit.quota_m, limit.period_us, limit.burst_us) == (quota.millicores, quota.period_us, quota.burst_us)
        if same and served[asked.goal].threads <= len(asked.here.cpus):
            return _served(served[asked.goal], asked.goal, f"under a limit of {limit_text(quota)}")
    return None


def _predicted_under_limit(asked: _Asked) -> VariantChoice | None:
    """The best by predictions from times without a limit, of the numbers of threads at which the bundle has a variant
    or a time; no time is interpolated.
    """
    quota = asked.here.quota
    if quota is None:
        return None
    limit = limit_of(quota)
    choices = choices_by_threads(asked.bundle, asked.here, asked.policy)
    times = times_by_threads(asked.bundle, asked.here.mechanism, choices)
    services = [each for each in map(service_of_time, times, times.values()) if predictable(each, limit)]
    if not services:
        return None
    if asked.goal == "throughput":
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
    return replace(choices[threads], reason=reason)


def _within_range(asked: _Asked) -> VariantChoice | None:
    """The variant that loses least at the worst share of the range that was requested, wherever the process is in it:
    the times of the operators decide. It has CUDA graphs if the model was faster with them at each of these shares. It
    has one thread where more would gain less than they cost.
    """
    wide = asked.here.within
    if wide is None or not asked.policy.allows(How.ROBUST):
        return None
    bundle, threads = asked.bundle, asked.units if asked.here.unit == "core" and not _one_thread(asked) else 1
    found = _least_loss(bundle, wide)
    if found is None:
        lacking = [str(each) for each in wide.ends or () if str(each) not in bundle.manifest.get("choosing", {})]
        why = f"the bundle has no times at {', '.join(lacking)}" if lacking else "no variant was timed at all of it"
        reason = f"{why}, so its loss within {wide} is not known; tune the model for {wide}"
        return VariantChoice(UNTUNED_VARIANT, How.NONE, math.nan, reason, threads)
    name = found.name or UNTUNED_VARIANT
    if _gain_by_graphs(bundle, wide, asked.goal) and name + WITH_GRAPHS in {each["name"] for each in bundle.variants}:
        name += WITH_GRAPHS
    return VariantChoice(name, found.how, found.regret, found.reason, threads)


def _gain_by_graphs(bundle: Bundle, wide: Share, goal: ServiceGoal) -> bool:
    """Whether the whole model was faster with CUDA graphs at every measured share of a range."""
    served = bundle.served(wide.kind.range_of)
    best = [served.get(units, {}).get(goal) for units in _units_within(bundle, wide)]
    return all(each is not None and each.variant.endswith(WITH_GRAPHS) for each in best)


def _units_within(bundle: Bundle, wide: Share) -> list[int]:
    """Units of the bundle's shares within a range."""
    return sorted({n for share, n in bundle.units(wide.kind.range_of).items() if wide.spans(share)})


def _least_loss(bundle: Bundle, wide: Share) -> Choice | None:
    """None where no variant has times at both ends and at all shares between them."""
    mechanism, units = wide.kind.range_of, bundle.units(wide.kind.range_of)
    times = bundle.choosing(mechanism)
    if not all(units.get(str(end)) in times for end in wide.ends or ()):
        return None
    inside = [each for each in _units_within(bundle, wide) if each in times]
    label, unit = f"the measured shares of {wide}", wide.kind.unit
    return choose_over(times, inside, UNTUNED_VARIANT, label, unit, reported=bundle.measured(mechanism))


def _timed_whole(asked: _Asked) -> VariantChoice | None:
    """The best of times of the whole model at so many units; they were measured without a limit."""
    best = asked.bundle.served(asked.here.mechanism).get(asked.units, {}).get(asked.goal)
    if best is None or asked.here.quota is not None:
        return None
    return _served(best, asked.goal, f"at {units_text(asked.units, asked.here.unit)}")


def _smaller_share(asked: _Asked) -> VariantChoice | None:
    """Where nothing else speaks for a tuned variant: as at the largest smaller CPU share for which one is known to be
    the best. The times of that share hold, because its cores are a part of these.
    """
    mechanism, units = asked.here.mechanism, asked.units
    is_cpu = kind_of(mechanism).device_kind == CPU
    if not (asked.by_operators.is_last_resort and is_cpu and asked.policy.allows(How.NEAR)):
        return None
    for smaller in sorted({each for each in asked.bundle.units(mechanism).values() if each < units}, reverse=True):
        there = replace(asked, units=smaller)
        if not there.by_operators.exact:
            continue
        found = _at_units(there)
        reason = (
            f"{found.reason}; nothing was tuned or timed for {units_text(units, asked.here.unit)}, so it runs as on "
            f"{units_text(smaller, asked.here.unit)}, with {threads_text(found.threads)}; to get a faster variant, "
            f"tune the model for {mechanism}:{units}"
        )
        return VariantChoice(found.variant, How.NEAR, math.nan, reason, found.threads)
    return None


def _one_thread(asked: _Asked) -> VariantChoice | None:
    """The variant of a model of less than a millisecond that one thread runs faster than a pool. The times are the
    bundle's sums of operators: at one core, or without them at most `units` times as long.
    """
    mechanism, units, pooled = asked.here.mechanism, asked.units, asked.by_operators
    if units < 2 or kind_of(mechanism).device_kind != CPU:
        return None
    times = asked.bundle.choosing(mechanism)
    pool_s = times.get(units, {}).get(pooled.variant)
    if not pool_s or pool_s > TINY_S:
        return None
    alone = choose_variant(asked.bundle, 1, asked.policy, mechanism)
    alone_s, at_most = times.get(1, {}).get(alone.variant), ""
    if alone_s is None:
        alone, alone_s, at_most = pooled, units * pool_s, "at most "
    if alone_s > pool_s + POOL_COST_S:
        return None
    reason = (
        f"one thread runs it, because {units} threads would gain less than the {POOL_COST_S * 1e6:.0f} us that handing "
        f"work to them costs: the model takes {at_most}{alone_s * 1e6:.4g} us on 1 core, and {pool_s * 1e6:.4g} us on "
        f"{units}"
    )
    return replace(alone, reason=reason, threads=1)


_BY_THREADS = (_requested, _steps_under_limit, _timed_under_limit, _predicted_under_limit)
"""rules that choose a number of threads"""
_BY_UNITS = (_within_range, _timed_whole, _smaller_share, _one_thread)
"""rules for the share's units; without their answer the sums of operators decide"""


def _at_units(asked: _Asked) -> VariantChoice:
    return _first(_BY_UNITS, asked) or asked.by_operators


def _first(rules: Sequence[Callable[[_Asked], VariantChoice | None]], asked: _Asked) -> VariantChoice | None:
    return next(filter(None, (rule(asked) for rule in rules)), None)


def _served(best: Served, goal: ServiceGoal, at: str) -> VariantChoice:
    """With its times: `p50 9.7 ms, p99 25.5 ms at 30 % load`, or `9.6 ms in a loop`."""
    p99 = "" if best.p99_s is None else f", p99 {_ms(best.p99_s)}"
    takes = f"p50 {_ms(best.p50_s)}{p99} at {LOAD_TEXT}" if goal == "latency" else f"{_ms(best.loop_s)} in a loop"
    reason = f"no faster variant was timed {at}: with {threads_text(best.threads)} it takes {takes}"
    return VariantChoice(best.variant, How.EXACT, 0.0, reason, best.threads)


def _ms(secs: float) -> str:
    return f"{secs * 1e3:.3g} ms"


def choose_variant(
    bundle: Bundle, units: int, policy: Policy = DEFAULT_POLICY, mechanism: str = "cpu"
) -> VariantChoice:
    """The variant for a share of `units` units by `mechanism`; times under another mechanism do not apply here.

    First comes the variant tuned at just as many units, if none is known to be faster there. Then the measurements
    decide (`fractune_core.analysis.match.choose`). Without an answer it is the variant tuned at just as many units;
    with `policy.allow_unmeasured` the one tuned at the nearest number by ratio; else the untuned one.
    """
    kind = kind_of(mechanism)
    threads, here = units if kind.device_kind == CPU else 1, units_text(units, kind.unit)
    tuned, measured = _tuned_units(bundle, mechanism), bundle.choosing(mechanism)
    row = measured.get(units, {})
    same = [name for name, at in tuned.items() if at == units]
    own = next((name for name in same if name in row), None)
    if own is not None and row[own] <= min(row.values()):
        reason = f"it was tuned for {here}, and no other variant was faster there"
        return VariantChoice(own, How.EXACT, 0.0, reason, threads)
    choice = choose(measured, units, UNTUNED_VARIANT, policy, kind.unit, reported=bundle.measured(mechanism))
    if choice.name is not None or units in measured:
        return VariantChoice(choice.name or UNTUNED_VARIANT, choice.how, choice.regret, choice.reason, threads)
    if same:
        reason = f"it was tuned for {here}; the bundle has no times of other variants there"
        return VariantChoice(same[0], How.EXACT, math.nan, reason, threads)
    others = _tuned_units(bundle)
    if policy.allow_unmeasured and (near := tuned or others):
        nearest = min(near, key=lambda name: (max(near[name] / units, units / near[name]), near[name]))
        at = units_text(near[nearest], kind.unit)
        reason = f"it was tuned for {at}, the nearest share; its speed here was never measured"
        return VariantChoice(nearest, How.NEAR, math.nan, reason, threads)
    why = choice.reason if tuned else "the bundle has no variant for a single share"
    if others and not tuned:
        why = f"the bundle has no variant for a share of the kind '{mechanism}', only for {', '.join(others)}"
    best = f"{mechanism}:{units}" if kind.device_kind == CPU else here
    reason = f"{why}; to get a faster variant, tune the model for {best}"
    return VariantChoice(UNTUNED_VARIANT, How.NONE, math.nan, reason, threads)


def _tuned_units(bundle: Bundle, mechanism: str | None = None) -> dict[str, int]:
    """Units by variant, of the variants that were tuned at one share, of that mechanism or of any."""
    shares = bundle.manifest["shares"] if mechanism is None else bundle.units(mechanism)
    names = [variant["name"] for variant in bundle.variants if variant["name"] in shares]
    return {name: int(bundle.manifest["shares"][name]["units"]) for name in names}


def check_threads(bundle: Bundle, threads: int | None) -> None:
    """Raises BadRequest for a number of threads that no model can have."""
    if threads is None:
        return
    if bundle.manifest["device"]["kind"] != CPU:
        raise BadRequest(f"threads is {threads}, and {bundle.name} is for a GPU: leave it out")
    if threads < 1:
        raise BadRequest(f"threads is {threads}; give 1 or more, or None for the number that the share and goal say")


def check_cpus(here: ShareHere, threads: int) -> None:
    """Raises ShareUnavailable where the share has fewer CPUs than threads."""
    most = here.units if here.quota is None else len(here.cpus)
    if threads > most:
        raise ShareUnavailable(f"threads is {threads}, and there are {units_text(most, 'CPU')}; ask for {most} at most")


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


def runtime_choice(bundle: Bundle, here: ShareHere, own: VariantChoice, goal: ServiceGoal) -> tuple[VariantChoice, str]:
    """`own`, or the runtime that was faster than the bundle at this share; and a warning if that runtime is not there
    in the version that was timed. On more cores than were compared it is the one that was faster at the smaller share
    as which `own` runs. Under a CPU limit nothing was compared.
    """
    at = compared_share(bundle, here, own.threads)
    if here.within is not None and not _wins_within(bundle, here.within, goal):
        return own, ""
    compared = bundle.manifest.get("compared", {}).get(at[0]) if at else None
    winner = Winner.of(bundle, Compared.from_json(compared), goal) if compared else None
    if at is None or winner is None:
        return own, ""
    cores = units_text(at[1], here.unit)
    if not winner.is_here:
        missing = f"{winner.text} at {cores}, and {winner.missing}"
        return replace(own, reason=f"{own.reason}; {missing}"), f"{bundle.name}: {missing}; {winner.advice}"
    reason = f"{winner.runtime} {winner.installed} runs it, because it was {winner.factor} at {cores}"
    if at[1] == here.units:
        return VariantChoice(winner.runtime, How.EXACT, 0.0, reason, at[1]), ""
    reason += f"; runtimes were not compared at {units_text(here.units, here.unit)}"
    return VariantChoice(winner.runtime, How.NEAR, math.nan, reason, at[1]), ""


def _wins_within(bundle: Bundle, wide: Share, goal: ServiceGoal) -> bool:
    """Whether one other runtime was faster at every measured share of a range."""
    compared = bundle.manifest.get("compared", {})
    shares = [share for share in bundle.units(wide.kind.range_of) if wide.spans(share)]
    winners = {Compared.from_json(compared[share]).winner(goal) if share in compared else OURS for share in shares}
    return len(winners) == 1 and OURS not in winners


def compared_share(bundle: Bundle, here: ShareHere, threads: int) -> tuple[str, int] | None:
    """The bundle's share whose comparisons hold here, and its units: the one of so many units, else the smaller one as
    which the bundle runs, with as many `threads`.
    """
    if here.quota is not None:
        return None
    held = {units: name for name, units in bundle.units(here.mechanism).items()}
    units = here.units if here.units in held else threads
    return (held[units], units) if units in held else None


@dataclass(frozen=True)
class Winner:
    """A runtime that was faster than a bundle, and whether it is here in the version that was timed."""

    runtime: str
    version: str
    """that was timed"""
    installed: str
    factor: str
    """how much faster, for people"""

    @classmethod
    def of(cls, bundle: Bundle, compared: Compared, goal: ServiceGoal) -> Winner | None:
        """None where no runtime was faster."""
        runtime = compared.winner(goal)
        if runtime == OURS:
            return None
        how = "for requests with pauses" if goal == "latency" else "in a loop"
        ratio = compared.times[runtime].paced if goal == "latency" else compared.times[runtime].loop
        factor = "" if ratio is None else f"{ratio[0]:.2f} times as fast as the bundle's own code {how}"
        return cls.named(bundle, runtime, factor)

    @classmethod
    def named(cls, bundle: Bundle, runtime: str, factor: str) -> Winner:
        return cls(runtime, Runtime.from_json(bundle.manifest["runtimes"][runtime]).version, installed(runtime), factor)

    @property
    def is_here(self) -> bool:
        return is_alike(self.installed, self.version)

    @property
    def text(self) -> str:
        return f"{self.runtime} {self.version} was {self.factor}"

    @property
    def missing(self) -> str:
        return f"{self.installed} is installed here" if self.installed else "is not installed here"

    @property
    def advice(self) -> str:
        return f"install {self.runtime}=={self.version}"


def installed(runtime: str) -> str:
    """The installed version, empty if there is none. Nothing is imported."""
    for package in (runtime, *_BUILDS.get(runtime, ())):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return ""


def is_alike(version: str, timed: str) -> bool:
    """Whether the times of one version hold for another: they do for a patch of the same minor version."""
    return bool(version) and version.split(".")[:2] == timed.split(".")[:2]
