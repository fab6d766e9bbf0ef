"""A model follows the share of its process while it serves: a container that is resized, a new affinity."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from fractune.inference.backends import Backend
from fractune.inference.caller_warnings import warn_caller
from fractune.inference.cpu.share import ShareHere
from fractune_core.errors import FractuneError
from fractune_core.host.forks import begin_in_forked_children

LOOK_S = 0.5
"""from one look to the next at least; a change is to be noticed within a second"""

_Take = Callable[[ShareHere], None]


class ShareFollower:
    """Looks at calls and has no thread: a model without requests need not know. Each call gets the function that takes
    what fits a share: kept here, it would keep the model alive.
    """

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self._name = name
        self._turn = threading.Lock()
        self._seen: ShareHere | None = None
        self._limits = backend.limits()
        self._due = monotonic() + LOOK_S
        begin_in_forked_children(self)

    def begin_in_child(self) -> None:
        self._turn = threading.Lock()

    def rematch(self, take: _Take) -> None:
        """Detect the share; `take` gets it unless it is the one before. Raises the errors of both."""
        with self._turn:
            here = self._backend.look()
            if here != self._seen:
                take(here)
                self._seen = here

    def follow(self, take: _Take) -> None:
        """Rematch if the limits have changed since the last look. Any thread may call it, and no request fails by it:
        a model that cannot follow goes on as before, with a RuntimeWarning.
        """
        if not self._changed():
            return
        try:
            self.rematch(take)
        except FractuneError as error:
            warn_caller(f"{self._name} runs as before, though the share of the process has changed: {error}")

    def _changed(self) -> bool:
        """True for one thread after a change, and rarely for two."""
        now = monotonic()
        if now < self._due:
            return False
        self._due = now + LOOK_S
        limits, self._limits = self._limits, self._backend.limits()
        return limits != self._limits
