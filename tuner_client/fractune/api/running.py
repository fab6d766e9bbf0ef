"""A job from its request to its end, on the server or on a stack of its own; cancelled when the caller is stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fractune.api.following import follow, submit
from fractune.api.progress import View
from fractune.api.sessions import tuning_session
from fractune.from_proto import operator_records
from fractune.jobs import JobStatus
from fractune.reports.cross_table import CrossTable, operator_table
from fractune.reports.result import check_ended_well
from fractune.rpc import RpcClient
from fractune_core.convert import shapes_to_proto
from fractune_core.errors import FractuneError
from fractune_core.jobs import JobSpec, JobState
from fractune_core.pb import fractune_pb2 as pb

_NEEDS_SEARCH = (JobState.INGESTING, JobState.TUNING, JobState.VALIDATING)
"""states that a model which the log knows passes at once; in others, a tuner instance would only be in the way"""


@contextlib.contextmanager
def finished_job(
    model: Path, spec: JobSpec, state: Path | None, server: str | None, view: View
) -> Iterator[tuple[RpcClient, JobStatus]]:
    """Run the job for the file `model` to its end, on the server or on a stack of its own, and hand out the client.

    `spec.model` is filled in here. Raises what ended the job; whatever stops the caller cancels it.
    """
    began = time.perf_counter()
    with tuning_session(state, server, spec.shares) as (client, start_search), view:
        starting = {} if server is not None else {"starting": time.perf_counter() - began}
        ended = run_job(client, model, spec, view, start_search)
        yield client, replace(ended, phases_s={**starting, **ended.phases_s})


def operator_tables(client: RpcClient, job: JobStatus) -> list[CrossTable]:
    """The table tuned-at x run-at of every operator that the finished job was about, from published records."""
    request = pb.TabulateModelRequest(
        model=job.model, shares=job.shares, inputs=shapes_to_proto(job.inputs), target=job.target, scope=job.scope
    )
    published = map(operator_records, client.tabulate_model(request))
    selected = {each.workload_hash for each in job.operators if each.selected}
    return [operator_table(each, job.shares) for each in published if each.operator.workload_hash in selected]


def run_job(client: RpcClient, model: Path, spec: JobSpec, view: View, start_search: Callable[[], None]) -> JobStatus:
    """Run the job for the file `model` to its end; call `start_search` when it needs the workers for that.

    `spec.model` is filled in here. Raises what ended the job; whatever stops the caller cancels it.
    """

    def show(job: JobStatus) -> None:
        if job.state in _NEEDS_SEARCH:
            start_search()
        view.show(job)

    name = submit(client, model, spec)
    with _cancelled_when_stopped(client, name):
        ended = follow(client, name, show)
    check_ended_well(ended)
    return ended


@contextlib.contextmanager
def _cancelled_when_stopped(client: RpcClient, job: str) -> Iterator[None]:
    """A lost server goes on with the job when it is back; a reader of the output who has enough stops no job."""
    try:
        yield
    except (FractuneError, BrokenPipeError):
        raise
    except BaseException:  # Ctrl-C, SIGTERM, an error of the caller's own view: the job has no other use
        with contextlib.suppress(FractuneError):
            client.cancel_job(job)
        raise
