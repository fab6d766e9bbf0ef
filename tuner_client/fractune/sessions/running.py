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
from fractune.server.pace import Pace
from fractune.server.rpc import Absence, RpcClient, submit
from fractune.sessions.progress import View
from fractune.sessions.session import PlaceOptions, Workplace, tuning_session
from fractune_core.errors import FractuneError, JobFailed
from fractune_core.files.compared import ONNX_RUNTIME
from fractune_core.jobs import JobSpec, JobState

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
    return _followed(place, place.client.create_job(spec).name, view)


def _followed(place: Workplace, name: str, view: View) -> JobStatus:
    def show(job: JobStatus) -> None:
        if job.state in _NEEDS_SEARCH:
            place.start_search()
        view.show(job)

    with _cancelled_when_stopped(place, name, view):
        ended = follow(place.client, name, show, view.show_absence, view.afterwards_s)
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
    client: RpcClient,
    job: str,
    show: Callable[[JobStatus], None],
    report_absence: Callable[[Absence], None],
    afterwards_s: float = 0.0,
) -> JobStatus:
    """Show the job at each change until it has ended, and return it. `report_absence` is called while the server is
    away; the caller's own work after the job takes about `afterwards_s`.
    """
    ended = None
    for message in client.watch_job(job, report_absence):
        now = job_status(message)
        ended = now.followed(ended.pace if ended else _first_pace(client, now, afterwards_s))
        show(ended)
    if ended is None:
        raise JobFailed(f"the server said nothing about {job}; look at its log")
    return ended


_LOOKED_AT = 200
"""newest jobs that are searched for one of the same model"""


def _first_pace(client: RpcClient, job: JobStatus, afterwards_s: float) -> Pace:
    """What the server knows of earlier jobs of the same model. It costs a moment, and helps only people who wait."""
    with contextlib.suppress(FractuneError):
        past = (job_status(each) for each in client.jobs(limit=_LOOKED_AT))
        alike = (each for each in past if each.state is JobState.DONE and each.model == job.model)
        times = [each for each in client.runtime_times(job.model, _LOOKED_AT) if each.runtime == ONNX_RUNTIME]
        shapes = {name: shape for name, shape in job.spec.inputs.items() if shape}
        peer_s = {
            each.share: each.loop_s
            for each in reversed(times)
            if all(list(each.inputs[name].dims) == shape for name, shape in shapes.items() if name in each.inputs)
        }
        return Pace(next((each.progress.phases_s for each in alike), {}), afterwards_s, peer_s)
    return Pace(afterwards_s=afterwards_s)
