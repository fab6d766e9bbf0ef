"""How much of the fleet a job gets beside others."""

from __future__ import annotations

from enum import StrEnum

from fractune_core.errors import BadRequest


class Priority(StrEnum):
    """Words for the numbers in which the public contract has priorities: below 0, 0, above 0."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"

    @property
    def number(self) -> int:
        return list(Priority).index(self) - 1

    @property
    def weight(self) -> int:
        """Measurements that a job gets for each one that a job of low priority gets."""
        return _WEIGHTS[self]

    @classmethod
    def of(cls, number: int) -> Priority:
        if number == 0:
            return cls.NORMAL
        return cls.HIGH if number > 0 else cls.LOW

    @classmethod
    def parse(cls, text: str) -> Priority:
        """Raises BadRequest."""
        try:
            return cls(text)
        except ValueError:
            raise BadRequest(f"priority is '{text}'; write {', '.join(Priority)}") from None


_WEIGHTS = {Priority.LOW: 1, Priority.NORMAL: 4, Priority.HIGH: 16}
