"""The process of one co-runner: it runs a bundle, or streams through memory.

It is confined first, as for a measurement. Times come from the clock that all processes of a host have in common.
"""

import contextlib
import fcntl
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fractune_core.shares import Share

_FIRST_CALLS = 3


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the share, its cores separated by commas, and the kind of program (`bundle` or `bubble`).

    Then come its file or its MiB, and the folder of the alternation lock, empty for none. Raises ShareUnavailable,
    BadBundle.
    """
    from fractune_workers.confinement import confinement_for

    share, cores, kind, content, lock_folder = args
    confinement = confinement_for(Share.parse(share), [int(core) for core in cores.split(",") if core])
    confinement.enter()
    description, call = bubble(int(content)) if kind == "bubble" else _model(content, share)
    loops = Loops(call, AlternationLock(Path(lock_folder)).held if lock_folder else contextlib.nullcontext)

    def look() -> dict[str, Any]:
        """The description of the program and the seconds of an inference, after loading and the proof of the share."""
        call()
        began = time.monotonic()
        for _ in range(_FIRST_CALLS):
            call()
        secs = (time.monotonic() - began) / _FIRST_CALLS
        confinement.verify()
        return {**description, "secs": secs}

    return {"look": look, "loop": loops.loop, "serve": loops.serve, "work": loops.work, "cpu_s": time.process_time}


class Loops:
    """Calls one after the other; those that warm up do not count."""

    def __init__(self, call: Callable[[], Any], lock: Callable[[], AbstractContextManager[Any]]) -> None:
        self._call, self._lock = call, lock

    def _run(self) -> None:
        with self._lock():
            self._call()

    def loop(self, phase_s: float, begin_s: float, lasts_s: float) -> list[float]:
        """Start calls after `phase_s`, and count those from `begin_s` on for `lasts_s`. Returns the beginning of the
        first counted call, then the end of each.
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
        """Answer requests that arrive `arrivals_s` seconds after `begin_s`; returns the latency of each in seconds."""
        self._run()
        latencies = []
        for arrival_s in arrivals_s:
            _sleep_until(begin_s + arrival_s)
            self._run()
            latencies.append(time.monotonic() - begin_s - arrival_s)
        _come_to_rest()
        return latencies

    def work(self, begin_s: float, count: int, ended: str) -> dict[str, Any]:
        """Make `count` calls, or fewer if the file `ended` appears before: the co-runner that ends first makes it."""
        flag, done = Path(ended), 0
        _sleep_until(begin_s)
        while done < count and not flag.exists():
            self._run()
            done += 1
        ended_s = time.monotonic()
        flag.touch()
        return {"done": done, "ended_s": ended_s}


class AlternationLock:
    """Two locked files that two processes hold alternately: at the first, a process waits until the other has run."""

    def __init__(self, folder: Path) -> None:
        self._next, self._now = (os.open(folder / name, os.O_CREAT | os.O_RDWR) for name in ("next", "now"))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
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
    from fractune_runtime.loading import load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of an untuned variant: a note of the result says it
        model = load(path, share=share)
    inputs = model.placed(model.random_inputs())
    choice = model.choice
    description = {"variant": choice.variant, "how": choice.how.value, "reason": choice.reason}
    return description, lambda: model.run_tensors(inputs)


def bubble(mebibytes: int) -> tuple[dict[str, Any], Callable[[], Any]]:
    """A call that streams through a buffer of `mebibytes` on one thread: it copies one half onto the other."""
    buffer, half = memoryview(bytearray(mebibytes << 20)), mebibytes << 19

    def copy() -> None:
        buffer[:half] = buffer[half:]

    return {}, copy


def _sleep_until(moment_s: float) -> None:
    left_s = moment_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)


def _come_to_rest() -> None:
    """Wait until the threads of a pool no longer look for work: they would disturb the next timing."""
    from fractune.comparing.interleaved import wait_for_quiet

    wait_for_quiet()
