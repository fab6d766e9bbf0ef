"""The interface of a mechanism, with the answers of one that keeps faults within their process."""

from typing import Protocol

from fractune_core.shares import GrantedShare


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

    # The supervisor's side: called in the process that owns the confined one.

    @property
    def gpu_uuid(self) -> str | None:
        """The whole GPU that the share is a part of; None for a CPU share."""
        return None

    @property
    def fault_domain(self) -> str | None:
        """Identity of the device whose other clients a fault under this share affects; None when it affects none.

        The same text in every process of the host, and in all its containers: a GPU's UUID.
        """
        return None

    def is_active(self) -> bool:
        """True if the device accepts clients now. Takes seconds at most."""
        return True

    def restart_service(self) -> None:
        """Start the service of the device again, if it is ours and has died. Called once every client has left."""
        return  # mypy takes an empty body for an abstract method

    def before_kill(self, pid: int) -> bool:  # noqa: ARG002  mechanisms with a daemon need the argument
        """Have the device let go of the confined process `pid`, which does not answer and is killed next.

        True = the kill harms no other client. Takes seconds at most.
        """
        return True
