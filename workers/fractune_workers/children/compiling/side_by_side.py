"""Pieces of work side by side, each in a fork of this process: it is warm, and what a fork leaks goes with it."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from fractune_core.errors import FractuneError
from fractune_core.parent_death import die_with_parent


@dataclass(frozen=True)
class _Fork:
    pid: int
    reader: int

    def result(self) -> Any:
        """What the fork's work returned. Raises what it raised, or FractuneError when the fork died."""
        with os.fdopen(self.reader, "rb") as pipe:
            answer = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        if not answer:
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            how = signal.Signals(number).name if number else "an early end"
            raise FractuneError(f"the compiler was ended by {how}; its output says more")
        result, error = pickle.loads(answer)  # noqa: S301  our own fork wrote it
        if error is not None:
            raise error
        return result


def side_by_side(work: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of all pieces, in their order; as many at a time as this process has cores.

    Results and errors must be such as can be pickled. Raises the first error, once no fork is left.
    """
    most = len(os.sched_getaffinity(0))
    waiting, running, outcomes = list(work), list[_Fork](), list[tuple[Any, Exception | None]]()
    while waiting or running:
        while waiting and len(running) < most:
            running.append(_start(waiting.pop(0)))
        outcomes.append(_outcome(running.pop(0).result))
    errors = [error for _, error in outcomes if error is not None]
    if errors:
        raise errors[0]
    return [result for result, _ in outcomes]


def _start(work: Callable[[], Any]) -> _Fork:
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _work_and_leave(work, writer, parent)
    os.close(writer)
    return _Fork(pid, reader)


def _work_and_leave(work: Callable[[], Any], writer: int, parent: int) -> NoReturn:
    """In a fork: write the outcome to the pipe and end. Whatever happens, it must not go on as a second server."""
    try:
        die_with_parent(parent)
        outcome = pickle.dumps(_outcome(work))
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(outcome)
        os._exit(0)
    except BaseException:  # noqa: BLE001  its parent sees a pipe without an answer
        traceback.print_exc()
    finally:
        os._exit(1)


def _outcome(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001  it is raised where the results are asked for
        return None, error
