"""Objects in a forked child. It has one thread, and a lock that another thread held at the fork stays locked there."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """An object with locks."""

    def begin_in_child(self) -> None:
        """Make new locks, and give up what another thread was changing. No other thread runs."""
        ...


_objects: weakref.WeakSet[Forked] = weakref.WeakSet()


def begin_in_forked_children(each: Forked) -> None:
    """Have each forked child call `begin_in_child` before anything else."""
    _objects.add(each)


def _begin_all() -> None:
    for each in list(_objects):
        each.begin_in_child()


os.register_at_fork(after_in_child=_begin_all)
