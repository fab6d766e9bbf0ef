"""SIGTERM, SIGHUP and a closed output stop a command in order, as Ctrl-C does."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


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
    """Have SIGTERM and SIGHUP raise Stopped in the main thread; under `nohup` SIGHUP stays ignored."""
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _stop)


def terminal_gone() -> Stopped:
    """The exception for a closed terminal. The shell and the kernel both send SIGHUP; the second one is ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return Stopped(signal.SIGHUP)


def _stop(signal_number: int, _: FrameType | None) -> NoReturn:
    raise terminal_gone() if signal_number == signal.SIGHUP else Stopped(signal_number)
