"""The answers of a mechanism that keeps faults within their process."""

from __future__ import annotations


class Contained:
    """To inherit from."""

    @property
    def fault_domain(self) -> str | None:
        return None

    def is_active(self) -> bool:
        return True

    def restart_service(self) -> None:
        """Nothing here serves the device."""

    def before_kill(self, pid: int) -> bool:  # noqa: ARG002  other mechanisms need the argument
        return True
