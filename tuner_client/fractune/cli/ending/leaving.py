"""Whether a server continues a job when the command that follows it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import termios
from collections.abc import Iterator
from typing import Self

from fractune.cli.ending.stopped import Stopped, terminal_gone
from fractune.server.job_status import JobStatus
from fractune.server.rpc import Absence
from fractune.sessions.progress import GoalNews, View


class LeavableView(View):
    """Shows a job by another view. A closed terminal leaves the job running; Ctrl-C at a terminal asks."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.last: JobStatus | None = None
        """the job as last shown"""

    def __enter__(self) -> Self:
        self._view.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        with _lost_terminal_stops():
            self._view.__exit__(None, None, None)

    def show(self, job: JobStatus) -> None:
        self.last = job
        with _lost_terminal_stops():
            self._view.show(job)

    def show_goal(self, goal: GoalNews) -> None:
        with _lost_terminal_stops():
            self._view.show_goal(goal)

    def show_step(self, text: str) -> None:
        with _lost_terminal_stops():
            self._view.show_step(text)

    def show_absence(self, absence: Absence) -> None:
        with _lost_terminal_stops():
            self._view.show_absence(absence)

    def leaves(self, job: str, stop: BaseException) -> bool:
        """Whether `stop` leaves the job to the server.

        SIGHUP and a closed output leave it. Ctrl-C asks if the terminal can answer. Everything else cancels it.
        """
        if isinstance(stop, Stopped):
            return stop.terminal_gone or stop.reader_gone
        if not isinstance(stop, KeyboardInterrupt) or not _somebody_is_there():
            return False
        try:
            with _lost_terminal_stops():
                self._view.__exit__(None, None, None)  # print the question below the table
                _ask(job)
        except KeyboardInterrupt:
            print(f"\ncancelling {job}", file=sys.stderr)
            return False
        except Stopped as stopped:
            return self.leaves(job, stopped)
        stop.add_note(f"{job} goes on; to follow it: fractune watch {job}")
        return True


def _ask(job: str) -> None:
    """Ask, and return if the job should go on. Ctrl-C raises KeyboardInterrupt."""
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # drop input from before the question
    print(f"\n{job} goes on at the server. Enter leaves it there, Ctrl-C again cancels it: ", end="", file=sys.stderr)
    sys.stderr.flush()
    sys.stdin.readline()


def _somebody_is_there() -> bool:
    """Whether a question can be answered: at a terminal, by a command in the foreground."""
    try:
        at_terminal = sys.stdin.isatty() and sys.stderr.isatty()
        return at_terminal and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # no controlling terminal, or streams that are closed or none
        return False


@contextlib.contextmanager
def _lost_terminal_stops() -> Iterator[None]:
    """Raise Stopped for errors of a closed terminal, which come before its SIGHUP."""
    try:
        yield
    except (OSError, termios.error) as error:
        if error.args[:1] != (errno.EIO,):
            raise
        raise terminal_gone() from error
