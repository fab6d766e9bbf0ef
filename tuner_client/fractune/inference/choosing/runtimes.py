"""Another runtime for a share, if it was faster there and is installed."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace

from fractune.inference.choosing.matching import Matched
from fractune.inference.choosing.variants import VariantChoice
from fractune.inference.cpu.share import ShareHere
from fractune_core.analysis.match import How
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import OURS, Compared, Runtime
from fractune_core.served import ServiceGoal
from fractune_core.shares import units_text


def runtime_choice(bundle: Bundle, here: ShareHere, found: Matched, goal: ServiceGoal) -> tuple[Matched, str]:
    """`found`, or the runtime that was faster than the bundle at exactly this share; and a warning if that runtime is
    not there in the version that was timed. Under a CPU limit nothing was compared.
    """
    share = next((name for name, units in bundle.units(here.mechanism).items() if units == here.units), None)
    compared = bundle.manifest.get("compared", {}).get(share)
    if compared is None or here.quota is not None:
        return found, ""
    times = Compared.from_json(compared)
    winner = times.winner(goal)
    if winner == OURS:
        return found, ""
    wanted = Runtime.from_json(bundle.manifest["runtimes"][winner]).version
    how = "for paced requests" if goal == "latency" else "in a loop"
    ratio = times.times[winner].paced if goal == "latency" else times.times[winner].loop
    factor = "" if ratio is None else f"{ratio[0]:.2f} times as fast as the bundle's own code {how}"
    there = installed(winner)
    if not is_alike(there, wanted):
        missing = f"{winner} {wanted} was {factor} at {units_text(here.units, here.unit)}, and "
        missing += f"{there} is installed here" if there else "is not installed here"
        choice = replace(found.choice, reason=f"{found.choice.reason}; {missing}")
        return replace(found, choice=choice), f"{bundle.name}: {missing}; install {winner}=={wanted}"
    reason = f"{winner} {there} runs it: {factor} at {units_text(here.units, here.unit)}"
    return Matched(VariantChoice(winner, How.EXACT, 0.0, reason), found.share, here.units), ""


def installed(runtime: str) -> str:
    """The installed version, empty if there is none. Nothing is imported."""
    try:
        return importlib.metadata.version(runtime)
    except importlib.metadata.PackageNotFoundError:
        return ""


def is_alike(version: str, timed: str) -> bool:
    """Whether the times of one version hold for another: they do for a patch of the same minor version."""
    return bool(version) and version.split(".")[:2] == timed.split(".")[:2]
