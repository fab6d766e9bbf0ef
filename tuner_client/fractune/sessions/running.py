"""A job from its request to its end, on a server or a new stack.

Stopping the caller cancels the job, unless the caller leaves it to the server.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fractune.server.job_status import JobStatus, check_ended_well, job_status
from fractune.server.rpc import Absence, RpcClient, submit
from fractune.sessions.progress import View
from fractune.sessions.session import PlaceOptions, Workplace, tuning_session
from fractune_core.codec.messages import to_proto
from fractune_core.errors import FractuneError, JobFailed
from fractune_core.jobs import JobSpec, JobState
from fractune_core.pb import fractune_pb2 as pb

_NEEDS_SEARCH = (JobState.INGESTING, JobState.TUNING, JobState.VALIDATING)
"""states that a model with a complete log passes at once; in others, a tuner instance would take up cores"""


@contextlib.contextmanager
def finished_job(model: Path, spec: JobSpec, where: PlaceOptions, view: View) -> Iterator[tuple[Workplace, JobStatus]]:
    """Run the job for the file `model` to its end, on a server or a new stack, and yield that workplace.

    `spec.model` is filled in here. Raises the error that ended the job. Stopping the caller cancels the job, unless
    `view` leaves it to the server.
    """
    began = time.perf_counter()
    with tuning_session(where, spec.shares) as place, view:
        starting = {"starting": time.perf_counter() - began} if place.is_own else {}
        ended = run_job(place, model, spec, view)
        yield place, replace(ended, progress=replace(ended.progress, phases_s={**starting, **ended.progress.phases_s}))


def run_job(place: Workplace, model: Path, spec: JobSpec, view: View) -> JobStatus:
    """Run the job for the file `model` to its end. `spec.model` is filled in here.

    Raises the error that ended the job. Stopping the caller cancels the job, unless `view` leaves it to the server.
    """
    return _followed(place, submit(place.client, model, spec), view)


def rerun_job(place: Workplace, spec: JobSpec, view: View) -> JobStatus:
    """As `run_job`, for a model that the server has: `spec.model`. Raises NotFound if it has not."""
    return _followed(place, place.client.create_job(to_proto(spec, pb.JobSpec)).name, view)


def _followed(place: Workplace, name: str, view: View) -> JobStatus:
    def show(job: JobStatus) -> None:
        if job.state in _NEEDS_SEARCH:
            place.start_search()
        view.show(job)

    with _cancelled_when_stopped(place, name, view):
        ended = follow(place.client, name, show, view.show_absence)
    check_ended_well(ended)
    return ended


@contextlib.contextmanager
def _cancelled_when_stopped(place: Workplace, job: str, view: View) -> Iterator[None]:
    """Cancel the job when the caller is stopped. A lost server continues it, and a closed output does not cancel it."""
    try:
        yield
    except (FractuneError, BrokenPipeError):
        raise
    except BaseException as stop:  # Ctrl-C, SIGTERM, or an error of the caller's view
        if place.is_own or not view.leaves(job, stop):
            with contextlib.suppress(FractuneError):
                place.client.cancel_job(job)
                stop.add_note(f"{job} is cancelled")
        raise


def follow(
    client: RpcClient, job: str, show: Callable[[JobStatus], None], report_absence: Callable[[Absence], None]
) -> JobStatus:
    """Show the job at each change until it has ended, and return it. `report_absence` is called while the server is
    away.
    """
    ended = None
    for message in client.watch_job(job, report_absence):
        ended = job_status(message)
        show(ended)
    if ended is None:
        raise JobFailed(f"the server said nothing about {job}; look at its log")
    return ended
