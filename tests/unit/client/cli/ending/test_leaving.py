"""Who leaves a job, and what is run when it has ended."""

import errno
import io
import json
import os
import pty
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from fractune.cli.ending import LeavableView, Stopped, news, run_when_done, take_signals
from fractune.server.job_status import JobStatus, job_status
from fractune.sessions.progress import View
from fractune_core.errors import JobFailed
from fractune_core.jobs import JobState
from tests.support.client_samples import job_script


class BrokenView(View):
    """Its terminal is gone, or something else."""

    def __init__(self, number: int) -> None:
        self._number = number

    def show(self, job: JobStatus) -> None:
        raise OSError(self._number, f"cannot show {job.name}")


@pytest.fixture
def done() -> JobStatus:
    return job_status(job_script()[-1])


def shown(job: JobStatus) -> LeavableView:
    view = LeavableView(View())
    view.show(job)
    return view


def test_sighup_leaves_a_job_and_everything_else_cancels_it_where_nobody_can_be_asked() -> None:
    view = LeavableView(View())
    assert view.leaves("jobs/1", Stopped(signal.SIGHUP))
    for stop in (Stopped(signal.SIGTERM), KeyboardInterrupt(), ValueError()):
        assert not view.leaves("jobs/1", stop)


@pytest.mark.parametrize("streams", ["of a terminal that is not ours", "none"])
def test_nobody_is_asked_who_cannot_answer(streams: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, keyboard = pty.openpty()
    with os.fdopen(screen, "rb"), os.fdopen(keyboard, "r+b", buffering=0) as terminal:
        stream = None if streams == "none" else io.TextIOWrapper(terminal)
        monkeypatch.setattr("sys.stdin", stream)
        monkeypatch.setattr("sys.stderr", stream)
        assert not LeavableView(View()).leaves("jobs/1", KeyboardInterrupt())


def test_a_terminal_that_takes_no_more_is_as_good_as_its_sighup(done: JobStatus) -> None:
    with pytest.raises(Stopped) as stopped:
        LeavableView(BrokenView(errno.EIO)).show(done)
    assert stopped.value.exit_code == 129
    with pytest.raises(OSError, match="cannot show"):
        LeavableView(BrokenView(errno.ENOSPC)).show(done)


def test_under_nohup_a_closed_terminal_stops_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    take_signals()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    take_signals()
    with pytest.raises(Stopped):
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)  # the shell's, after the kernel's: the end goes on undisturbed


@pytest.mark.parametrize(
    ("number", "stop"),
    [(signal.SIGTERM, Stopped), (signal.SIGHUP, Stopped), (signal.SIGINT, KeyboardInterrupt)],
    ids=["SIGTERM", "SIGHUP", "SIGINT"],
)
def test_a_signal_waits_until_the_thread_that_is_being_started_runs(
    number: signal.Signals, stop: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading._start_new_thread  # type: ignore[attr-defined]

    def begin_under_a_signal(*args: object) -> object:
        signal.raise_signal(number)
        return begin(*args)

    monkeypatch.setattr(threading, "_start_new_thread", begin_under_a_signal)
    take_signals()
    began = threading.Event()

    def start_and_wait() -> None:
        threading.Thread(target=began.set).start()
        threading.Event().wait(60)  # the signal ends it

    with pytest.raises(stop):
        start_and_wait()
    assert began.wait(10)


def test_the_command_is_told_how_the_job_ended(
    done: JobStatus, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "told"
    command = f'echo "$FRACTUNE_JOB $FRACTUNE_JOB_STATE $FRACTUNE_JOB_CODE $FRACTUNE_JOB_BUNDLE" > {told}; echo said'
    with run_when_done(command, shown(done)) as fetched:
        fetched.bundle = Path("/a/b.fractune")
    assert told.read_text() == f"{done.name} done 0 /a/b.fractune\n"
    assert capfd.readouterr() == ("", "said\n")
    with pytest.raises(typer.Exit), run_when_done(command, shown(done)):
        raise typer.Exit(10)
    assert told.read_text() == f"{done.name} done 10 \n"
    failed = replace(done, state=JobState.FAILED)
    with pytest.raises(JobFailed), run_when_done(f'echo "$FRACTUNE_JOB_MESSAGE" > {told}; exit 3', shown(failed)):
        raise JobFailed("it failed; $(touch /nowhere)")
    assert told.read_text() == "it failed; $(touch /nowhere)\n"
    assert capfd.readouterr().err.endswith("note: the command of --on-done ended with code 3\n")


def test_a_job_that_was_left_or_cancelled_here_runs_nothing(done: JobStatus, tmp_path: Path) -> None:
    told = tmp_path / "told"
    with run_when_done(f"touch {told}", shown(replace(done, state=JobState.TUNING))):
        pass
    with pytest.raises(KeyboardInterrupt), run_when_done(f"touch {told}", shown(done)):
        raise KeyboardInterrupt
    assert not told.exists()


def test_the_result_is_in_the_news_of_a_done_job_only(done: JobStatus) -> None:
    with run_when_done(None, shown(done)) as fetched:
        pass
    result = json.loads(news(done, fetched, 0, "")["FRACTUNE_JOB_RESULT"])
    assert [each["share"] for each in result["shares"]] == ["cpu:1", "cpu:2"]
    assert set(result) == {"wall_s", "trials", "shares"}
    assert news(replace(done, state=JobState.CANCELLED), fetched, 6, "")["FRACTUNE_JOB_RESULT"] == ""
