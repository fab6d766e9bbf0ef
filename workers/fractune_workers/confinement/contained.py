"""What a mechanism answers under which a fault stays with its process."""

from __future__ import annotations


class Contained:
    """To inherit from."""

    @property
    def fault_domain(self) -> str | None:
        return None

    def is_active(self) -> bool:
        return True

    def revive(self) -> None:
        """Nothing here serves the device."""

    def before_kill(self, pid: int) -> bool:  # noqa: ARG002  what others need to know
        return True
