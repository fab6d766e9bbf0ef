"""A job from its request to its end, on a server or on a stack of its own. It is cancelled when the caller is stopped,
unless the caller leaves it to the server.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fractune.server.from_proto import job_status
from fractune.server.job_status import JobStatus, check_ended_well
from fractune.server.rpc import Absence, RpcClient
from fractune.sessions.finding import PathText
from fractune.sessions.progress import View
from fractune.sessions.session import Workplace, tuning_session
from fractune_core.codec.messages import to_proto
from fractune_core.errors import FractuneError, JobFailed
from fractune_core.jobs import JobSpec, JobState
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb

_NEEDS_SEARCH = (JobState.INGESTING, JobState.TUNING, JobState.VALIDATING)
"""states that a model which the log knows passes at once; in others, a tuner instance would only be in the way"""


@contextlib.contextmanager
def finished_job(
    model: Path, spec: JobSpec, state: PathText | None, server: str | None, view: View, reconnect_s: float
) -> Iterator[tuple[Workplace, JobStatus]]:
    """Run the job for the file `model` to its end, on a server or on a stack of its own, and hand out that place.

    `spec.model` is filled in here. A server that went away is waited for `reconnect_s`. Raises what ended the job;
    whatever stops the caller cancels it, unless `view` leaves it to the server.
    """
    began = time.perf_counter()
    with tuning_session(state, server, spec.shares, reconnect_s) as place, view:
        starting = {"starting": time.perf_counter() - began} if place.is_own else {}
        ended = run_job(place, model, spec, view)
        yield place, replace(ended, phases_s={**starting, **ended.phases_s})


def run_job(place: Workplace, model: Path, spec: JobSpec, view: View) -> JobStatus:
    """Run the job for the file `model` to its end. `spec.model` is filled in here.

    Raises what ended the job; whatever stops the caller cancels it, unless `view` leaves it to the server.
    """

    def show(job: JobStatus) -> None:
        if job.state in _NEEDS_SEARCH:
            place.start_search()
        view.show(job)

    name = submit(place.client, model, spec)
    with _cancelled_when_stopped(place, name, view):
        ended = follow(place.client, name, show, view.show_absence)
    check_ended_well(ended)
    return ended


@contextlib.contextmanager
def _cancelled_when_stopped(place: Workplace, job: str, view: View) -> Iterator[None]:
    """A lost server goes on with the job when it is back; a reader of the output who has enough stops no job."""
    try:
        yield
    except (FractuneError, BrokenPipeError):
        raise
    except BaseException as stop:  # Ctrl-C, SIGTERM, an error of the caller's own view
        if place.is_own or not view.leaves(job, stop):
            with contextlib.suppress(FractuneError):
                place.client.cancel_job(job)
                stop.add_note(f"{job} is cancelled")
        raise


def submit(client: RpcClient, model: Path, spec: JobSpec) -> str:
    """Send the model unless the server has it, and create the job; its name."""
    sha256 = Collection.MODELS.parse(client.upload_model(model).name)
    return client.create_job(to_proto(replace(spec, model=sha256), pb.JobSpec)).name


def follow(
    client: RpcClient, job: str, show: Callable[[JobStatus], None], tell: Callable[[Absence], None]
) -> JobStatus:
    """Show the job whenever it has changed until it has ended, and return it; `tell` of a server that is away."""
    ended = None
    for message in client.watch_job(job, tell):
        ended = job_status(message)
        show(ended)
    if ended is None:
        raise JobFailed(f"the server said nothing about {job}; look at its log")
    return ended
