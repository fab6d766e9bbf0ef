"""The variant for a number of threads that the caller asks for."""

from __future__ import annotations

from dataclasses import replace

from fractune.inference.choosing.variants import VariantChoice, choose_variant
from fractune.inference.cpu import ShareHere
from fractune_core.analysis.cpu_limits.limits import threads_text
from fractune_core.analysis.match import Policy
from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.files.bundles import Bundle
from fractune_core.share_kinds import CPU
from fractune_core.shares import units_text


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


def choice_for_threads(bundle: Bundle, here: ShareHere, policy: Policy, threads: int) -> VariantChoice:
    """The variant for so many whole cores. Raises ShareUnavailable where the share has fewer CPUs."""
    check_cpus(here, threads)
    choice = choose_variant(bundle, threads, policy, here.mechanism)
    return replace(choice, reason=f"{choice.reason}; {threads_text(threads)}, as requested")
