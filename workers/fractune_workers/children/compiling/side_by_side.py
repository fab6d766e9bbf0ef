"""Pieces of work side by side, each in a fork of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fractune_core.errors import FractuneError
from fractune_core.host.limits import (
    addressed_bytes,
    cpu_limit_s,
    is_death_by_cpu,
    is_death_by_memory,
    memory_limit,
    set_memory_limit,
)
from fractune_workers.child.errors import cpu_met, memory_met
from fractune_workers.children.building.fork import Fork, ForkDied

_PIECE_BYTES = 1 << 30
"""the least memory for one piece of work, on top of this process's own"""


def side_by_side(work: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of all pieces, in their order. At most one piece a core of this process runs at a time, and fewer
    where they would together address more memory than it may.

    Results and errors must be picklable. Raises the first error, once no fork is left; LimitMet for a piece that used
    up its memory or CPU time.
    """
    most = min(len(os.sched_getaffinity(0)), len(work))
    limit_bytes = piece_bytes = memory_limit()
    if limit_bytes is not None and work:
        have_bytes = addressed_bytes()
        most = max(1, min(most, (limit_bytes - have_bytes) // _PIECE_BYTES))
        piece_bytes = have_bytes + (limit_bytes - have_bytes) // most
        work = [partial(_within, piece_bytes, each) for each in work]
    waiting, running, results, errors = list(work), list[Fork](), list[Any](), list[Exception]()
    while waiting or running:
        while waiting and len(running) < most:
            running.append(Fork(waiting.pop(0)))
        try:
            results.append(running.pop(0).result())
        except ForkDied as error:
            errors.append(_cause(error, limit_bytes, piece_bytes))
        except Exception as error:  # noqa: BLE001  the other forks must be waited for
            errors.append(error)
    if errors:
        raise errors[0]
    return results


def _within(memory_bytes: int, work: Callable[[], Any]) -> Any:
    set_memory_limit(memory_bytes)
    return work()


def _cause(death: ForkDied, limit_bytes: int | None, piece_bytes: int | None) -> FractuneError:
    """`piece_bytes`: the part of the limit that the piece had."""
    if is_death_by_cpu(death.number):
        return cpu_met(cpu_limit_s())
    if limit_bytes and piece_bytes and is_death_by_memory(death.number, death.peak_bytes, piece_bytes):
        return memory_met(limit_bytes)
    return death
