"""Changes of the share of a process while it serves: a container that is resized, a new affinity."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

LOOK_S = 0.5
"""from one look to the next at least; a change is to be noticed within a second"""


class LimitWatch:
    """Looks at calls and has no thread: a model without requests need not know."""

    def __init__(self, read: Callable[[], tuple[Any, ...]]) -> None:
        self._read = read
        self._limits = read()
        self._due = monotonic() + LOOK_S

    def changed(self) -> bool:
        """Whether the limits differ from those of the last look; False between two looks. Any thread may call it: a
        change is True for one of them, and rarely for two.
        """
        now = monotonic()
        if now < self._due:
            return False
        self._due = now + LOOK_S
        limits, self._limits = self._limits, self._read()
        return limits != self._limits
