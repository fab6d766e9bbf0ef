"""Runs work in a fork of this process: the fork starts warm, and leaks end with it."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from fractune_core.errors import FractuneError
from fractune_core.host.parent_death import die_with_parent


class ForkDied(FractuneError):
    """A fork ended without an answer, by signal `number` (0: by itself), after `spent_s` seconds of CPU time, with a
    peak of `peak_bytes` of memory.
    """

    def __init__(self, message: str, number: int = 0, spent_s: float = 0.0, peak_bytes: int = 0) -> None:
        super().__init__(message)
        self.number = number
        self.spent_s = spent_s
        self.peak_bytes = peak_bytes


class Fork:
    """A piece of work under way. Its result and its error must be picklable."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._reader, writer = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reader)
            _work_and_leave(work, writer, parent)
        os.close(writer)

    def result(self) -> Any:
        """Wait for the work's result; once only. Raises the work's error, or ForkDied."""
        with os.fdopen(self._reader, "rb") as pipe:
            answer = pipe.read()
        _, status, usage = os.wait4(self._pid, 0)
        if os.WIFSIGNALED(status) or not answer:
            number = os.WTERMSIG(status)
            cause = signal.Signals(number).name if number else "an early end"
            spent_s, peak_bytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
            raise ForkDied(f"the compiler was ended by {cause}", number, spent_s, peak_bytes)
        result, error = pickle.loads(answer)  # noqa: S301  our own fork wrote it
        if error is not None:
            raise error
        return result


def _work_and_leave(work: Callable[[], Any], writer: int, parent: int) -> NoReturn:
    """In a fork: write the outcome to the pipe and end. The fork must never go on as a second server."""
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
    except Exception as error:  # noqa: BLE001  `result` raises it
        return None, error
