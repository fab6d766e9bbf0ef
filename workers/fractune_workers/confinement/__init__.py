"""Confinement: how a process is held to a share, one file for each mechanism.

Every mechanism has four methods. `probe` checks whether this share is possible here. `enter` runs in the child, before
TVM is loaded. `verify` runs inside, once TVM's threads run, and returns the granted share. `leave` ends it. What a
share needs outside the child, such as a daemon, is taken by the supervisor's `environment` and given back by its
`leave`. And it tells the supervisor what a fault under it does to others: nothing for a mechanism that is `Contained`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fractune_core.errors import ShareUnavailable
from fractune_core.shares import GrantedShare, Share
from fractune_workers.confinement.cpu import CpuConfinement
from fractune_workers.confinement.full import FullConfinement
from fractune_workers.confinement.green import GreenConfinement
from fractune_workers.confinement.mig import MigConfinement
from fractune_workers.confinement.mps import MpsConfinement
from fractune_workers.confinement.mps_sm import MpsSmConfinement
from fractune_workers.confinement.none import NoConfinement


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

    # The supervisor's side: asked in the process that owns the confined one.

    @property
    def fault_domain(self) -> str | None:
        """Identity of the device whose other clients a fault under this share affects; None when it affects none.

        The same text in every process of the host, and in all its containers: a GPU's UUID.
        """
        ...

    @property
    def gpu_uuid(self) -> str | None:
        """The whole GPU that the share is a part of; None for a CPU share."""
        ...

    def is_active(self) -> bool:
        """Whether the device takes clients, now. Takes seconds at most."""
        ...

    def restart_service(self) -> None:
        """Start what serves the device again, where it is ours and has died. Called once every client has left."""
        ...

    def before_kill(self, pid: int) -> bool:
        """Have the device let go of the confined process `pid`, which does not answer and is killed next.

        True = the kill harms no other client. Takes seconds at most.
        """
        ...


def confinement_for(share: Share, units: Sequence[int] = ()) -> Confinement:
    """The confinement for `share`; `units` names the cores of a CPU share, empty = the first that this process may use.

    Raises ShareUnavailable for a mechanism that no file here is for.
    """
    match share.mechanism:
        case "cpu":
            return CpuConfinement(share, units)
        case "mps":
            return MpsConfinement(share)
        case "mps-sm":
            return MpsSmConfinement(share)
        case "mig":
            return MigConfinement(share)
        case "green":
            return GreenConfinement(share)
        case "full":
            return FullConfinement(share)
        case "none":
            return NoConfinement(share)
    raise ShareUnavailable(f"share '{share}': nothing here confines by {share.mechanism}; see `fractune shares`")


def stream_of(confinement: Confinement) -> int:
    """The CUDA stream that the entered process must launch on (an address); 0, the default stream, for most shares."""
    return confinement.stream if isinstance(confinement, GreenConfinement) else 0
