"""Confinement: how a process is held to a share, one file for each mechanism.

Every mechanism does the same four things: `probe` (could this share be had here?), `enter` (in the child, before
TVM is loaded), `verify` (from inside, once TVM's threads run: what was granted?), `leave`. And it tells the supervisor
what a fault under it does to others: nothing for a mechanism that is `Contained`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tuner_core.errors import ShareUnavailable
from tuner_core.shares import GrantedShare, Share
from workers.confinement.cpu import CpuConfinement


class Confinement(Protocol):
    """One share on this machine. Every method raises ShareUnavailable with what to do next."""

    def probe(self) -> None:
        """Check that the share can be had here. May run in any process; changes nothing."""
        ...

    def environment(self) -> dict[str, str]:
        """Environment variables that the confined process needs from its start."""
        ...

    def enter(self) -> None:
        """Confine this process, before TVM is loaded."""
        ...

    def verify(self) -> GrantedShare:
        """Prove from inside what was granted, once every thread that will compute has been started."""
        ...

    def leave(self) -> None:
        """Give the share back."""
        ...

    # The supervisor's side: asked in the process that owns the confined one.

    @property
    def shared_fate(self) -> str | None:
        """Identity of the device whose clients a fault under this share takes along; None when it takes nobody along.

        The same text in every process of the host, and in all its containers: a GPU's UUID.
        """
        ...

    def is_active(self) -> bool:
        """Whether the device takes clients, now. Takes seconds at most."""
        ...

    def before_kill(self, pid: int) -> bool:
        """Have the device let go of the confined process `pid`, which does not answer and is killed next.

        True = the kill harms no other client. Takes seconds at most.
        """
        ...


def confinement_for(share: Share, units: Sequence[int] = ()) -> Confinement:
    """The confinement for `share`; `units` names the cores to use, empty = the first that this process may use.

    Raises ShareUnavailable for a mechanism that this build has no file for.
    """
    if share.mechanism == "cpu":
        return CpuConfinement(share, units)
    raise ShareUnavailable(f"share '{share}': this worker can confine to cpu:N only; ask for a CPU share")
