"""Another runtime for a share, if it was faster there and is installed."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
from dataclasses import dataclass, replace

from fractune.inference.choosing.matching import Matched
from fractune.inference.choosing.variants import VariantChoice
from fractune.inference.cpu import ShareHere
from fractune_core.analysis.match import How
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import ONNX_RUNTIME, OURS, Compared, Runtime
from fractune_core.served import ServiceGoal
from fractune_core.shares import units_text

_BUILDS = {ONNX_RUNTIME: ("onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")}
"""other packages that hold a runtime"""


def runtime_choice(bundle: Bundle, here: ShareHere, found: Matched, goal: ServiceGoal) -> tuple[Matched, str]:
    """`found`, or the runtime that was faster than the bundle at this share; and a warning if that runtime is not there
    in the version that was timed. On more cores than were compared it is the one that was faster at the smaller share
    as which `found` runs. Under a CPU limit nothing was compared.
    """
    at = compared_share(bundle, here, found.threads)
    compared = bundle.manifest.get("compared", {}).get(at[0]) if at else None
    if at is None or compared is None:
        return found, ""
    winner = Winner.of(bundle, Compared.from_json(compared), goal)
    if winner is None:
        return found, ""
    cores = units_text(at[1], here.unit)
    if not winner.is_here:
        missing = f"{winner.text} at {cores}, and {winner.missing}"
        choice = replace(found.choice, reason=f"{found.choice.reason}; {missing}")
        return replace(found, choice=choice), f"{bundle.name}: {missing}; {winner.advice}"
    reason = f"{winner.runtime} {winner.installed} runs it, because it was {winner.factor} at {cores}"
    if at[1] == here.units:
        return Matched(VariantChoice(winner.runtime, How.EXACT, 0.0, reason), found.share, at[1]), ""
    reason += f"; runtimes were not compared at {units_text(here.units, here.unit)}"
    return Matched(VariantChoice(winner.runtime, How.NEAR, math.nan, reason), found.share, at[1]), ""


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
