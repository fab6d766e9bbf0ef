"""Objects in a forked child. It has one thread, and a lock that another thread held at the fork stays locked there."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forked(Protocol):
    """An object with locks."""

    def begin_in_child(self) -> None:
        """Make new locks, and give up what another thread was changing. No other thread runs."""
        ...


class Turn:
    """A lock of several objects with `begin_in_child`, and whether a fork cut its holder off."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._process = os.getpid()
        self._was_cut_off = False

    def begin_in_child(self) -> bool:
        """Called by each of the objects: True if another thread held the lock at the fork."""
        if self._process != os.getpid():
            self._process, self._was_cut_off = os.getpid(), self.lock.locked()
            self.lock = threading.Lock()
        return self._was_cut_off


_objects: weakref.WeakSet[Forked] = weakref.WeakSet()


def begin_in_forked_children(each: Forked) -> None:
    """Have each forked child call `begin_in_child` before anything else."""
    _objects.add(each)


def _begin_all() -> None:
    for each in list(_objects):
        each.begin_in_child()


os.register_at_fork(after_in_child=_begin_all)
