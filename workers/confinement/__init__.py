"""Confinement: how a process is held to a share, one file for each mechanism.

Every mechanism does the same four things: `probe` (could this share be had here?), `enter` (in the child, before
TVM is loaded), `verify` (from inside, once TVM's threads run: what was granted?), `leave`. What a share needs outside
the child, such as a daemon, is taken by the supervisor's `environment` and given back by its `leave`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tuner_core.errors import ShareUnavailable
from tuner_core.shares import GrantedShare, Share
from workers.confinement.cpu import CpuConfinement
from workers.confinement.mps import MpsConfinement
from workers.confinement.mps_sm import MpsSmConfinement


class Confinement(Protocol):
    """One share on this machine. Every method raises ShareUnavailable with what to do next."""

    def probe(self) -> None:
        """Check that the share can be had here. May run in any process; changes nothing."""
        ...

    def environment(self) -> dict[str, str]:
        """Environment variables that the confined process needs from its start, after what they name has been set up.

        Called by the supervisor, which holds the share from now until it calls `leave`.
        """
        ...

    def enter(self) -> None:
        """Confine this process, before TVM is loaded."""
        ...

    def verify(self) -> GrantedShare:
        """Prove from inside what was granted, once every thread that will compute has been started."""
        ...

    def leave(self) -> None:
        """Give the share back: the process that entered it, or the supervisor, once its process has ended."""
        ...


def confinement_for(share: Share, units: Sequence[int] = ()) -> Confinement:
    """The confinement for `share`; `units` names the cores of a CPU share, empty = the first that this process may use.

    Raises ShareUnavailable for a mechanism that this build has no file for.
    """
    if share.mechanism == "cpu":
        return CpuConfinement(share, units)
    if share.mechanism == "mps":
        return MpsConfinement(share)
    if share.mechanism == "mps-sm":
        return MpsSmConfinement(share)
    raise ShareUnavailable(
        f"share '{share}': this worker can confine to cpu:N, mps:PERCENT and mps-sm:CHUNKS only; ask for one of these"
    )
