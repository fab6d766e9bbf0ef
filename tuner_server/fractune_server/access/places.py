"""Places for what costs memory or time: they bound what all callers together can make the server take."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fractune_core.errors import QuotaExceeded

WAIT_S = 20.0
"""the longest wait for a place"""


class Place:
    """A place of a caller; `leave` may be called more than once."""

    def __init__(self, *held: threading.Semaphore) -> None:
        self._held = list(held)

    def leave(self) -> None:
        while self._held:
            self._held.pop().release()


class Places:
    """Any thread may call. One caller has at most half of the places, so that it does not keep the others out."""

    def __init__(self, count: int, what: str, wait_s: float | None = WAIT_S) -> None:
        """`what` the places are for, in the error; `wait_s` is None to wait without end."""
        self._count, self._what, self._wait_s = count, what, wait_s
        self._all = threading.Semaphore(count)
        self._own: dict[str, threading.Semaphore] = {}

    @contextmanager
    def place(self, caller: str) -> Iterator[Place]:
        """Hold a place until the block ends, or until it is left. Raises QuotaExceeded if none becomes free in time."""
        own = self._own.get(caller) or self._own.setdefault(caller, threading.Semaphore(self._count // 2))
        self._take(own)
        place = Place(own)
        try:
            self._take(self._all)
            place = Place(own, self._all)
            yield place
        finally:
            place.leave()

    def _take(self, places: threading.Semaphore) -> None:
        if not places.acquire(timeout=self._wait_s):
            raise QuotaExceeded(f"the server has as many {self._what} as it can hold; try again when others have ended")
