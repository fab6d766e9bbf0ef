"""Pieces of work side by side, each in a fork of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from fractune_workers.children.building.fork import Fork


def side_by_side(work: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of all pieces, in their order; as many at a time as this process has cores.

    Results and errors must be such as can be pickled. Raises the first error, once no fork is left.
    """
    most = len(os.sched_getaffinity(0))
    waiting, running, results, errors = list(work), list[Fork](), list[Any](), list[Exception]()
    while waiting or running:
        while waiting and len(running) < most:
            running.append(Fork(waiting.pop(0)))
        try:
            results.append(running.pop(0).result())
        except Exception as error:  # noqa: BLE001  the other forks must be waited for
            errors.append(error)
    if errors:
        raise errors[0]
    return results
