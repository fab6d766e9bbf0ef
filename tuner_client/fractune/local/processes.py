"""The processes of a one-machine stack or of a node: started by one thread, watched, restarted, ended in order. One
thread owns all of them, from the first start to the last wait, because each is tied to the life of the thread that
started it (`fractune_core.host.parent_death`).
"""

import collections
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from fractune_core.errors import FractuneError, RedisGone, ShareUnavailable, error_kinds
from fractune_core.host import parent_death
from fractune_core.host.private_folders import OWN_UMASK

log = logging.getLogger(__name__)

RESTARTS_A_MINUTE = 5
"""a part that dies more often than this is given up"""
STOP_TIMEOUT_S = 4.0
"""from SIGTERM to SIGKILL"""
POLL_S = 0.05
PATIENCE_S, PAUSE_S = 60.0, 5.0
"""a part whose share is refused is started again after a pause, for so long: other programs may only just disturb the
proof of the share
"""
_RETRIED_CODES = frozenset({1, RedisGone.exit_code})
"""exit codes of a part that may succeed next time: an unexpected error, Redis out of reach"""
_LAST_LINES = 20
"""of a part without a log file, kept for the reason of its end"""
_RELAY_ENDS_S = 1.0
"""after the end of a part; a process that it started may still hold its output"""


@dataclass(frozen=True)
class Part:
    """One process of the stack."""

    name: str
    command: Callable[[], list[str]]
    """called at every start, so that a new process can have a new name"""
    log_file: Path | None
    """None = its lines go to standard error of this process, each with the part's name"""
    env: Mapping[str, str]
    rank: int
    """parts end in the order of their rank, the smallest first"""
    given_up: Callable[[str], FractuneError] = FractuneError
    """the error, with this text, if the part keeps dying"""
    kind: str = ""
    """of a measurer its share: parts of one kind do the same work"""
    hindrance: Callable[[str], FractuneError | None] = lambda _: None
    """called with the output of an ended process: the reason why a restart would not help, if any"""
    end_signal: signal.Signals = signal.SIGTERM
    waits_for_redis: bool = False
    """started again after a pause, as often as it takes, while Redis is out of reach"""


class _Output(Protocol):
    """Where a process writes."""

    stream: IO[bytes]
    place: str
    """where a person finds it"""

    def said(self) -> str:
        """What the ended process wrote, or the last lines of it."""
        ...


class _LogFile:
    def __init__(self, path: Path) -> None:
        self.stream: IO[bytes] = path.open("ab")
        self.place = f"its log is {path}"
        self._path = path
        self._start = self.stream.tell()

    def said(self) -> str:
        with self._path.open("rb") as file:
            file.seek(self._start)
            return file.read().decode(errors="replace")


class _Relay:
    """Writes each line of a process to standard error of this one, with the name of the part."""

    def __init__(self, name: str) -> None:
        read_end, write_end = os.pipe()
        self.stream: IO[bytes] = os.fdopen(write_end, "wb", buffering=0)
        self.place = "its last lines stand above"
        self._name = name
        self._last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._thread = threading.Thread(target=self._relay, args=(read_end,), name=f"log of {name}", daemon=True)
        self._thread.start()

    def said(self) -> str:
        self._thread.join(_RELAY_ENDS_S)
        return "".join(self._last)

    def _relay(self, read_end: int) -> None:
        with open(read_end, encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                self._last.append(line)
                sys.stderr.write(_labelled(self._name, line))
                sys.stderr.flush()


def _labelled(name: str, line: str) -> str:
    """The line with the name in front, or in a line of JSON as its first field."""
    return f'{{"part": "{name}", {line[1:]}' if line.startswith('{"') else f"{name}: {line}"


class Running:
    """A part with its present process."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self._starts: collections.deque[float] = collections.deque()
        self._refused_at = self._again_at = 0.0  # monotonic; 0 = not refused
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tend(self) -> bool:
        """Restart the process if it has ended; returns True if it had. Raises the error of its end if a restart is
        useless.
        """
        code = self._process.poll()
        if code is None or time.monotonic() < self._again_at:
            return False
        if self._again_at:
            self._again_at = 0.0
            self._start()
            return True
        said = self._output.said()
        words = _last_words(said)
        end = _format_end(self.part.name, code, words, self._output.place)
        if self.part.waits_for_redis and code == RedisGone.exit_code:
            log.warning("%s; starting it again in %g s", end, PAUSE_S)
            self._again_at = time.monotonic() + PAUSE_S
            return False
        is_final = code > 0 and code not in _RETRIED_CODES
        cause = (_refusal(code, words) if is_final else None) or self.part.hindrance(said)
        if cause is not None:
            raise cause
        if is_final:
            raise FractuneError(end)
        now = time.monotonic()
        while self._starts and now - self._starts[0] > 60:
            self._starts.popleft()
        if len(self._starts) > RESTARTS_A_MINUTE:
            raise self.part.given_up(f"{end}; given up after {RESTARTS_A_MINUTE} restarts in a minute")
        log.info("%s; starting it again", end)
        self._start()
        return True

    def start_later(self, refusal: ShareUnavailable) -> bool:
        """Have the part, whose share was just refused, started again after a pause; False if it was refused for
        PATIENCE_S. The first refusal is noted on standard error.
        """
        now = time.monotonic()
        if not self._refused_at or now - self._starts[-1] > PATIENCE_S:  # it had the share in the meantime
            self._refused_at = now
            sys.stderr.write(f"note: {refusal}; trying again for {PATIENCE_S:g} s\n")
        if now - self._refused_at >= PATIENCE_S:
            return False
        self._again_at = now + PAUSE_S
        return True

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(self.part.end_signal)

    def finish(self, deadline: float) -> None:
        """Wait until `deadline` (monotonic), then kill the whole process group."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _start(self) -> None:
        self._starts.append(time.monotonic())
        log_file = self.part.log_file
        self._output: _Output = _Relay(self.part.name) if log_file is None else _LogFile(log_file)
        with self._output.stream as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *self.part.command()],
                env={**os.environ, **self.part.env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                umask=OWN_UMASK,
                # A separate session: Ctrl-C in the terminal is for the command line, which ends the rest in
                # order.
                start_new_session=True,
            )


def tend_all(running: list[Running]) -> list[tuple[Part, ShareUnavailable]]:
    """Restart ended parts. Raises the error of a part's end if a restart is useless. A measurer with a refused share
    leaves `running`: at once while another part of its kind is left (others hold all of the share), else after
    PATIENCE_S of restarts. Returns the parts that left.
    """
    gone: list[tuple[Part, ShareUnavailable]] = []
    for each in list(running):
        try:
            each.tend()
        except ShareUnavailable as refusal:
            if not each.part.kind:
                raise
            if not _has_twin(each, running) and each.start_later(refusal):
                log.info("%s is started again in %g s: %s", each.part.name, PAUSE_S, refusal)
                continue
            log.info("%s is not started again, others go on: %s", each.part.name, refusal)
            running.remove(each)
            gone.append((each.part, refusal))
    return gone


def _has_twin(one: Running, running: Iterable[Running]) -> bool:
    return any(other is not one and other.part.kind == one.part.kind for other in running)


def end_in_order(running: Iterable[Running], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """End the processes: all of one rank together, the smallest rank first, each rank within `timeout_s`; no process is
    left afterwards.
    """
    ranks: dict[int, list[Running]] = {}
    for each in running:
        ranks.setdefault(each.part.rank, []).append(each)
    for rank in sorted(ranks):
        deadline = time.monotonic() + timeout_s
        for each in ranks[rank]:
            each.terminate()
        for each in ranks[rank]:
            each.finish(deadline)


def _last_words(said: str) -> str:
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")


def _format_end(name: str, code: int, words: str, place: str) -> str:
    end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    last = f" ({words})" if words else ""
    return f"{name} {end}{last}; {place}"


def _refusal(code: int, words: str) -> FractuneError | None:
    """The error that a part printed as its last line before it exited with that error's code."""
    message = words.removeprefix("fractune: ")
    if message == words:
        return None
    kind = next((kind for kind in error_kinds().values() if kind.exit_code == code), FractuneError)
    return kind(message.removeprefix("--share "))  # the option is the worker's, and none of the caller's
