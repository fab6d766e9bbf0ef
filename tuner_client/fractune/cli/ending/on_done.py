"""`--on-done COMMAND`: the caller's own command, run here when the job has ended.

The server never runs it: otherwise everybody who may submit a job could run any command there.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from fractune.cli.ending.leaving import LeavableView
from fractune.server.job_status import JobStatus
from fractune_core.errors import FractuneError
from fractune_core.jobs import JobState


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
    shares = [{"share": each.share, "untuned_s": each.untuned_s, "tuned_s": each.tuned_s} for each in job.results]
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
