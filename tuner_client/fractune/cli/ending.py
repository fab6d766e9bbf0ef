"""How a command ends: its exit code if it did not fail, its signals, and whether a server continues its job.

The exit codes of errors stand with the errors (docs/exit-codes.md).
"""

import atexit
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self, TextIO, cast

import typer

from fractune.server.job_status import JobStatus
from fractune.server.rpc import Absence
from fractune.sessions.progress import GoalNews, View
from fractune_core.errors import FractuneError
from fractune_core.jobs import JobState

GOAL_MISSED = 10
"""everything went well, and the goal was not reached"""
SHARES_SKIPPED = 13
"""the result is there, but for shares that could not be verified"""


def end_without(skipped_shares: Mapping[str, str]) -> None:
    """Name the shares without a result, each with its cause, on standard error, and exit with a code of their own.

    Return if there are none.
    """
    for share, cause in skipped_shares.items():
        print(f"fractune: {share} is skipped: {cause}", file=sys.stderr)
    if skipped_shares:
        raise typer.Exit(SHARES_SKIPPED)


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


def leave(code: int) -> NoReturn:
    """End the process with this exit code after the exit handlers.

    Nothing takes the interpreter down. That takes a tenth of a second, and a native thread of a library that returns
    into half an interpreter aborts the process, with another exit code.
    """
    try:
        atexit._run_exitfuncs()  # noqa: SLF001  only the end of the interpreter runs them otherwise
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError):
                stream.flush()
    finally:
        os._exit(code)


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


# `--on-done COMMAND`: the caller's own command, run here when the job has ended.
#
# The server never runs it: otherwise everybody who may submit a job could run any command there.


@dataclass
class Fetched:
    """Files that the following command has downloaded so far."""

    bundle: Path | None = None


@contextlib.contextmanager
def run_when_done(command: str | None, view: LeavableView) -> Iterator[Fetched]:
    """Run `command` after the block if the job of `view` has ended, well or not.

    It does not run for a job that was left or that Ctrl-C cancelled. Its exit code changes nothing.
    """
    fetched = Fetched()
    try:
        yield fetched
    except FractuneError as error:
        _run(command, view.last, fetched, error.exit_code, str(error))
        raise
    except typer.Exit as end:
        _run(command, view.last, fetched, end.exit_code, "")
        raise
    _run(command, view.last, fetched, 0, "")


def _run(command: str | None, job: JobStatus | None, fetched: Fetched, exit_code: int, message: str) -> None:
    if command is None or job is None or job.state.open:
        return
    sys.stdout.flush()
    # All its data is in its environment and none in its text: no name of a model can become a command. Its output
    # goes to standard error: standard output is the result's alone.
    variables = news(job, fetched, exit_code, message)
    ended = subprocess.run(["/bin/sh", "-c", command], env={**os.environ, **variables}, stdout=2, check=False)
    if ended.returncode != 0:
        print(f"note: the command of --on-done ended with code {ended.returncode}", file=sys.stderr)


def news(job: JobStatus, fetched: Fetched, exit_code: int, message: str) -> dict[str, str]:
    """Environment variables that describe the end of the job; empty if not known."""
    shares = [
        {"share": each.share, "untuned_s": each.untuned_s, "tuned_s": each.tuned_s, "disturbed": each.is_disturbed}
        for each in job.results
    ]
    result = {"wall_s": job.wall_s, "trials": dict(job.progress.trials_done), "shares": shares}
    return {
        "FRACTUNE_JOB": job.name,
        "FRACTUNE_JOB_STATE": job.state.value,
        "FRACTUNE_JOB_MODEL": job.model_name,
        "FRACTUNE_JOB_MESSAGE": message,
        "FRACTUNE_JOB_RESULT": json.dumps(result) if job.state is JobState.DONE else "",
        "FRACTUNE_JOB_BUNDLE": str(fetched.bundle or ""),
        "FRACTUNE_JOB_CODE": str(exit_code),
    }
