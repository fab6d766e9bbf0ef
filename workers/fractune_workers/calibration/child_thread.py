"""The thread that a child belongs to: it starts the child, calls it, and lives as long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class ChildThread:
    """Runs what it is given, one after the other, in a thread of its own.

    A daemon: a command that is stopped does not wait for a child that is starting, which dies with the thread.
    """

    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopped = threading.Event()
        self._ended: Future[None] = Future()
        threading.Thread(target=_fulfil, args=(self._ended, self._serve), daemon=True).start()

    def submit(self, run: Callable[[], _T]) -> Future[_T]:
        future: Future[_T] = Future()
        self._jobs.put(lambda: _fulfil(future, run))
        return future

    def stop(self) -> Future[None]:
        """Give up what waits, and end after what runs."""
        self._stopped.set()
        self._jobs.put(lambda: None)
        return self._ended

    def _serve(self) -> None:
        try:
            while not self._stopped.is_set():
                self._jobs.get()()
        finally:
            self._at_end()


class HasChildThread(Protocol):
    """Something with a child, and the thread that the child belongs to."""

    thread: ChildThread


_Thing = TypeVar("_Thing", bound=HasChildThread)


@contextlib.contextmanager
def running(thing: _Thing) -> Iterator[_Thing]:
    """Ends the thing's child with the block; waits for it only when all went well."""
    try:
        yield thing
    finally:
        ended = thing.thread.stop()
    ended.result()


def _fulfil(future: Future[_T], run: Callable[[], _T]) -> None:
    try:
        future.set_result(run())
    except Exception as error:  # noqa: BLE001  it is raised where the result is waited for
        future.set_exception(error)
