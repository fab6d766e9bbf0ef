"""A job from its request to its end: submit, follow, cancel when this command is stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fractune.cli.progress import View
from fractune.cli.session import tuning_session
from fractune.client import Client
from fractune.reports.cross_table import CrossTable, operator_table
from fractune.reports.result import check_ended_well
from fractune_core.convert import spec_to_proto, state_from_proto
from fractune_core.errors import FractuneError, JobFailed
from fractune_core.jobs import JobSpec, JobState
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb

_NEEDS_SEARCH = (JobState.INGESTING, JobState.TUNING, JobState.FINISHING)
"""states that a model which the log knows passes at once; in others, a tuner instance would only be in the way"""


@contextlib.contextmanager
def finished_job(
    model: Path, spec: JobSpec, state: Path | None, server: str | None, view: View
) -> Iterator[tuple[Client, pb.Job]]:
    """Run the job for the file `model` to its end, on the server or on a stack of its own, and hand out the client.

    `spec.model` is filled in here. Raises what ended the job; stopping this command cancels it.
    """
    with tuning_session(state, server, spec.shares) as (client, start_search):
        yield client, _run(client, model, spec, view, start_search)


def operator_tables(client: Client, job: pb.Job) -> list[CrossTable]:
    """The table tuned-at x run-at of every operator that the finished job was about, from published records."""
    spec = job.spec
    request = pb.TabulateModelRequest(model=spec.model, shares=spec.shares, inputs=spec.inputs, target=spec.target)
    selected = {each.workload_hash for each in job.operators if each.selected}
    answers = (each for each in client.tabulate_model(request) if each.operator.workload_hash in selected)
    return [operator_table(each, spec.shares) for each in answers]


def follow(client: Client, job: str, show: Callable[[pb.Job], None]) -> pb.Job:
    """Show the job whenever it has changed until it has ended, and return it."""
    ended = None
    for ended in client.watch_job(job):
        show(ended)
    if ended is None:
        raise JobFailed(f"the server said nothing about {job}; look at its log")
    return ended


def _run(client: Client, model: Path, spec: JobSpec, view: View, start_search: Callable[[], None]) -> pb.Job:
    def show(job: pb.Job) -> None:
        if state_from_proto(job.state) in _NEEDS_SEARCH:
            start_search()
        view.show(job)

    sha256 = Collection.MODELS.parse(client.upload_model(model).name)
    job = client.create_job(spec_to_proto(replace(spec, model=sha256)))
    with _cancelled_when_stopped(client, job.name), view:
        job = follow(client, job.name, show)
    check_ended_well(job)
    return job


@contextlib.contextmanager
def _cancelled_when_stopped(client: Client, job: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        raise
    except BaseException:  # Ctrl-C or SIGTERM: nobody waits for this job any more
        with contextlib.suppress(FractuneError):
            client.cancel_job(job)
        raise
