"""Whole commands, timed: wall and CPU seconds and memory with everything they start, and their lines as they come."""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_ORPHANS_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 60.0
_SAMPLE_EVERY_S = 2.0


@dataclass(frozen=True)
class Ended:
    """A command that has ended well."""

    started: float
    """seconds since 1970"""
    wall_s: float
    cpu_s: float
    """user and system time of the process and of all that it started"""
    lines: list[tuple[float, str]]
    """standard output: seconds since 1970 at which a line came, and the line"""
    memory: list[tuple[float, int]]
    """seconds since 1970, and bytes that all its processes held then; what they share counts once"""

    @property
    def peak_bytes(self) -> int:
        return max((held for _, held in self.memory), default=0)


def run_timed(command: Sequence[str], env: Mapping[str, str] | None = None) -> Ended:
    """Run a command to its end. Raises SystemExit with its last words when it fails. Main thread only."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, _stop)
    cpu_before_s, started = _cpu_of_children(), time.time()
    lines: list[tuple[float, str]] = []
    memory: list[tuple[float, int]] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        with _session(command, errors, env or {}) as process:
            ended = threading.Event()
            threads = [
                threading.Thread(target=_read, args=(process.stdout, lines)),
                threading.Thread(target=_sample_memory, args=(process.pid, ended, memory)),
            ]
            for thread in threads:
                thread.start()
            try:
                code = process.wait()
            finally:
                ended.set()
            wall_s = time.time() - started
        for thread in threads:
            thread.join()
        if code:
            errors.seek(0)
            last = "\n".join(errors.read().splitlines()[-20:])
            raise SystemExit(f"benchmarks: exit code {code} of {' '.join(command)}\n{last}")
    _reap_orphans()
    return Ended(started, wall_s, _cpu_of_children() - cpu_before_s, lines, memory)


@contextlib.contextmanager
def _session(command: Sequence[str], errors: IO[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The command in a separate session that leaves no process behind: TVM's workers outlive their parent, and would
    keep its standard output open.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, **env},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:  # this benchmark was interrupted: the command may end in order
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(output: IO[str] | None, lines: list[tuple[float, str]]) -> None:
    if output is not None:
        with output:
            lines.extend((time.time(), line.rstrip("\n")) for line in output)


def _sample_memory(pid: int, ended: threading.Event, samples: list[tuple[float, int]]) -> None:
    while not ended.wait(_SAMPLE_EVERY_S):
        samples.append((time.time(), sum(_held(process) for process in _family(pid))))


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _held(process: psutil.Process) -> int:
    """Its proportional set size in bytes; 0 when it is gone."""
    with contextlib.suppress(psutil.Error, OSError):
        return int(process.memory_full_info().pss)
    return 0


def _stop(*_: object) -> None:
    raise SystemExit("benchmarks: stopped")


def adopt_orphans() -> None:
    """Processes that outlive their parent become our children: their CPU time counts here, and they can be ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _reap_orphans() -> None:
    """Wait for what a command left behind; call only while this process has no other child."""
    deadline = time.monotonic() + _ORPHANS_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.05)


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def import_path() -> str:
    """PYTHONPATH for a child, so that it finds benchmarks/, whatever folder it runs in."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
