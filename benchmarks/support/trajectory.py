"""The improvement of a tuning run over time: pure functions over its trials."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """One measured candidate."""

    at_s: float
    """when its tuner had the result, in seconds on any clock"""
    operator: str
    """workload hash"""
    secs: float
    """median run time; infinite for a failure"""
    trace: str = ""


def best(trials: Iterable[Trial], until_s: float = math.inf) -> dict[str, Trial]:
    """The fastest trial of each operator among those up to `until_s`; the earlier one of equal ones."""
    found: dict[str, Trial] = {}
    for trial in sorted(trials, key=lambda trial: trial.at_s):
        known = found.get(trial.operator)
        if trial.at_s <= until_s and math.isfinite(trial.secs) and (known is None or trial.secs < known.secs):
            found[trial.operator] = trial
    return found


def latencies(trials: Iterable[Trial], weights: Mapping[str, int]) -> list[tuple[float, float]]:
    """(moment, latency in seconds) from the moment on at which every operator of `weights` has a time, whenever the
    latency falls.
    """
    held: dict[str, float] = {}
    curve: list[tuple[float, float]] = []
    for trial in sorted(trials, key=lambda trial: trial.at_s):
        if trial.operator not in weights or not trial.secs < held.get(trial.operator, math.inf):
            continue
        held[trial.operator] = trial.secs
        if len(held) == len(weights):
            curve.append((trial.at_s, sum(weights[name] * secs for name, secs in held.items())))
    return curve


def final_latency(trials: Iterable[Trial], weights: Mapping[str, int]) -> float:
    """Seconds; infinite when an operator has no time at all."""
    curve = latencies(trials, weights)
    return curve[-1][1] if curve else math.inf


def moment_of(trials: Iterable[Trial], weights: Mapping[str, int], latency_s: float) -> float:
    """When the latency was first no more than `latency_s`; infinite when it never was."""
    return first_held(latencies(trials, weights), latency_s)


def incumbents(trials: Iterable[Trial]) -> list[Trial]:
    """The trials that were the best of their operator when they came, in their order."""
    held: dict[str, float] = {}
    found = []
    for trial in sorted(trials, key=lambda trial: trial.at_s):
        if trial.secs < held.get(trial.operator, math.inf):
            held[trial.operator] = trial.secs
            found.append(trial)
    return found


def held_curve(retimed: Iterable[Trial], weights: Mapping[str, int]) -> list[tuple[float, float]]:
    """(moment, latency in seconds) of a tuner that held each of these trials from its moment on, with `secs` as its
    latency. Unlike `latencies`, the curve may rise, where the tuner was mistaken in a trial.
    """
    held: dict[str, float] = {}
    curve: list[tuple[float, float]] = []
    for trial in sorted(retimed, key=lambda trial: trial.at_s):
        held[trial.operator] = trial.secs
        if held.keys() >= weights.keys():
            curve.append((trial.at_s, sum(weights[name] * held[name] for name in weights)))
    return curve


def first_held(curve: Iterable[tuple[float, float]], latency_s: float) -> float:
    """The first moment at which the latency was no more than `latency_s`; infinite when it never was."""
    return next((at_s for at_s, held_s in curve if held_s <= latency_s), math.inf)
