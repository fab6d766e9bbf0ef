"""SIGTERM, SIGHUP and a closed output stop a command in order, as Ctrl-C does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast


class _Output:
    """A stream that raises Stopped at a write after its reader has gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _ended_by_its_reader():
            return self._stream.write(text)

    def flush(self) -> None:
        with _ended_by_its_reader():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def output_that_may_close() -> Iterator[None]:
    """Within the block, standard output and standard error raise Stopped once their reader has gone. Standard output
    is flushed at the end.
    """
    streams = sys.stdout, sys.stderr
    with contextlib.ExitStack() as stack:
        # A stream is None if it was closed when the command started.
        there = [each or stack.enter_context(Path(os.devnull).open("w", encoding="utf-8")) for each in streams]
        sys.stdout, sys.stderr = (cast(TextIO, _Output(each)) for each in there)
        try:
            yield
            sys.stdout.flush()
        finally:
            sys.stdout, sys.stderr = streams


@contextlib.contextmanager
def _ended_by_its_reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise Stopped(signal.SIGPIPE) from error


_AGAIN_AFTER_S = 0.001


class Stopped(BaseException):
    """SIGTERM, SIGINT, SIGHUP or SIGPIPE: unwind in order, then exit as if the signal had killed the process.

    Its notes describe the state of the job and of the stack.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number
        self.terminal_gone = signal_number == signal.SIGHUP
        self.reader_gone = signal_number == signal.SIGPIPE

    def __str__(self) -> str:
        return "; ".join(["stopped", *getattr(self, "__notes__", [])])


def take_signals() -> None:
    """Have SIGTERM and SIGHUP raise Stopped in the main thread, and SIGINT KeyboardInterrupt, but never while it starts
    a thread. Signals that the parent ignores (SIGHUP under `nohup`, SIGINT in the background) stay ignored.
    """
    signal.signal(signal.SIGTERM, _stop)
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def terminal_gone() -> Stopped:
    """The exception for a closed terminal. The shell and the kernel both send SIGHUP; the second one is ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return Stopped(signal.SIGHUP)


def _stop(signal_number: int, frame: FrameType | None) -> None:
    if _starts_thread(frame):  # whoever owns the new thread would never learn of it, and end what the thread works with
        _again_soon(signal_number)
    elif signal_number == signal.SIGINT:
        raise KeyboardInterrupt
    elif signal_number == signal.SIGHUP:
        raise terminal_gone()
    else:
        raise Stopped(signal_number)


def _starts_thread(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


def _again_soon(signal_number: int) -> None:
    signal.signal(signal.SIGALRM, lambda _, frame: _stop(signal_number, frame))
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_AFTER_S)
