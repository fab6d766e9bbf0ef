"""The process that runs one of two that share a processor: a bundle, or a neighbour that streams through memory.

Confined first, as a measurement is. Times are of the clock that all processes of a host have in common.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fractune_core.shares import Share

_FIRST_CALLS = 3


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments: the share, its cores separated by commas, what runs (`bundle` or `bubble`), its file or its MiB,
    and the folder by which it takes turns, empty for none. Raises ShareUnavailable, BadBundle.
    """
    from fractune_workers.confinement import confinement_for

    share, cores, kind, what, turns = args
    confinement = confinement_for(Share.parse(share), [int(core) for core in cores.split(",") if core])
    confinement.enter()
    description, call = bubble(int(what)) if kind == "bubble" else _model(what, share)
    turn = Turns(Path(turns)).turn if turns else contextlib.nullcontext
    loops = Loops(call, turn)

    def look() -> dict[str, Any]:
        """What runs, and the seconds of an inference, once everything has been loaded and the share is proved."""
        call()
        began = time.monotonic()
        for _ in range(_FIRST_CALLS):
            call()
        secs = (time.monotonic() - began) / _FIRST_CALLS
        confinement.verify()
        return {**description, "secs": secs}

    return {"look": look, "loop": loops.loop, "serve": loops.serve, "work": loops.work}


class Loops:
    """One call after the other; those that warm up do not count."""

    def __init__(self, call: Callable[[], Any], turn: Callable[[], AbstractContextManager[Any]]) -> None:
        self._call, self._turn = call, turn

    def _run(self) -> None:
        with self._turn():
            self._call()

    def loop(self, phase_s: float, begin_s: float, lasts_s: float) -> list[float]:
        """Calls from `phase_s` from now on, that count from `begin_s` on for so long: when the first of those that
        count began, and when each ended.
        """
        time.sleep(phase_s)
        self._run()
        while time.monotonic() < begin_s:
            self._run()
        marks = [time.monotonic()]
        while marks[-1] < marks[0] + lasts_s:
            self._run()
            marks.append(time.monotonic())
        _come_to_rest()
        return marks

    def serve(self, begin_s: float, arrivals_s: Sequence[float]) -> list[float]:
        """Requests that arrive so many seconds after `begin_s`: of each the seconds until it is answered."""
        self._run()
        latencies = []
        for arrival_s in arrivals_s:
            _sleep_until(begin_s + arrival_s)
            self._run()
            latencies.append(time.monotonic() - begin_s - arrival_s)
        _come_to_rest()
        return latencies

    def work(self, begin_s: float, count: int, ended: str) -> dict[str, Any]:
        """`count` calls, or as many as there are until the file `ended` exists, which the first to end makes."""
        flag, done = Path(ended), 0
        _sleep_until(begin_s)
        while done < count and not flag.exists():
            self._run()
            done += 1
        ended_s = time.monotonic()
        flag.touch()
        return {"done": done, "ended_s": ended_s}


class Turns:
    """Two processes that take turns, by two locked files: who has had its turn waits at the first for the other."""

    def __init__(self, folder: Path) -> None:
        self._next, self._now = (os.open(folder / name, os.O_CREAT | os.O_RDWR) for name in ("next", "now"))

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        fcntl.flock(self._next, fcntl.LOCK_EX)
        fcntl.flock(self._now, fcntl.LOCK_EX)
        fcntl.flock(self._next, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._now, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._next)
        os.close(self._now)


def _model(path: str, share: str) -> tuple[dict[str, Any], Callable[[], Any]]:
    from fractune.inference.model import load

    model = load(path, share=share)
    inputs = model.placed(model.random_inputs())
    choice = model.choice
    description = {"variant": choice.variant, "how": choice.how.value, "reason": choice.reason}
    return description, lambda: model.run_tensors(inputs)


def bubble(mebibytes: int) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Streams through a buffer of that size on one thread: copies one half of it onto the other."""
    buffer, half = memoryview(bytearray(mebibytes << 20)), mebibytes << 19

    def copy() -> None:
        buffer[:half] = buffer[half:]

    return {}, copy


def _sleep_until(moment_s: float) -> None:
    left_s = moment_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)


def _come_to_rest() -> None:
    """Threads of a pool that look for more work must not do so beside what is timed next."""
    from fractune.inference.comparing.turns import wait_for_quiet

    wait_for_quiet()
