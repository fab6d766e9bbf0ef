"""`fractune jobs`, `show`, `watch`, `cancel` and `workers`: the jobs and workers of a server."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fractune.cli import options
from fractune.cli.ending import end_without, run_when_done
from fractune.cli.printing import HEAVIEST, print_answer, print_details, print_json, print_tables
from fractune.cli.progress import choose_view
from fractune.features.client import Client
from fractune.features.compete.results import times_of_job
from fractune.features.tune.answer import Answer, answer_json, answer_of
from fractune.features.tune.table import result_json
from fractune.local.state import default_state_dir
from fractune.server.job_status import JobStatus, Worker
from fractune.sessions.progress import live_lines
from fractune.sessions.session import named_server, running_stack_of, server_session, session
from fractune.text.output_files import new_bundle
from fractune.text.rendering import Column, Table
from fractune_core.errors import one_line
from fractune_core.jobs import JobState
from fractune_core.shares import share_names, units_text

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, with or without 'jobs/'.")]


def jobs(
    open_only: Annotated[bool, typer.Option("--open", help="Only jobs that have not ended.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many, newest first.")] = 50,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """List jobs, newest first."""
    with session(Client, **vars(place)) as client:
        found = client.jobs(open_only=open_only, limit=limit)
    if as_json:
        print_json(*map(job_json, found))
        return
    print_tables(_jobs_table(found))


def _jobs_table(found: Sequence[JobStatus]) -> Table:
    columns = (
        *(Column("job"), Column("model", wraps_at=12), Column("shares"), Column("priority", dispensable=3)),
        *(Column("state"), Column("new trials", dispensable=1), Column("in the log", numbers=True, dispensable=4)),
        *(Column("shared", numbers=True, dispensable=4), Column("created (UTC)", dispensable=5)),
    )
    reasons = tuple(f"{job.name} {job.state.value}: {one_line(job.message)}" for job in found if job.message)
    return Table(columns, tuple(map(_job_cells, found)), notes=reasons)


def _job_cells(job: JobStatus) -> tuple[str, ...]:
    trials = f"{job.progress.candidates_had}/{job.progress.trials_planned}" if job.progress.trials_planned else "-"
    known, shared = str(job.progress.trials_known), str(job.progress.candidates_shared)
    created = f"{datetime.fromtimestamp(job.created_at, UTC):%Y-%m-%d %H:%M:%S}"
    request = job.name, job.model_name, ", ".join(job.shares), job.priority
    return *request, job.state.value, trials, known, shared, created


def watch(
    job: JobArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the bundle when the job is done.")] = None,
    force: options.Force = False,
    on_done: options.OnDone = None,
    as_json: options.Json = False,
    *,
    place: options.JobPlace,
) -> None:
    """Follow a job of a running server until it ends. Ctrl-C stops watching, not the job."""
    if out is not None:
        new_bundle(out, "", force=force)  # a file that cannot be written is refused before the wait
    view = choose_view(quiet=False, as_json=as_json)
    with run_when_done(on_done, view) as fetched:
        with server_session(Client, **vars(place), lasting=False) as client:
            followed = client.job(job)
            try:
                ended = followed.wait(progress=view)
            except KeyboardInterrupt as stop:
                stop.add_note(f"{followed.name} goes on")
                raise
            if out is not None:
                fetched.bundle = followed.bundle(out, force=force).path
            answer = _answer(client, ended)
        bundle = str(fetched.bundle or ended.bundle)
        if as_json:
            print_json({**result_json(ended, bundle), **answer_json(answer)})
        else:
            print_answer(answer, bundle)
        end_without(ended.spec.skipped_shares)


def show(
    job: JobArgument,
    operators: Annotated[bool, typer.Option("--operators", help="All operators; else the heaviest eight.")] = False,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Show a job: its answer, operators, phases, and gain over untuned TVM."""
    with session(Client, **vars(place)) as client:
        found = client.job(job).status()
        answer = _answer(client, found)
    if as_json:
        print_json({**result_json(found, found.bundle), **answer_json(answer)})
    elif found.state is JobState.DONE:
        print_answer(answer, found.bundle, most_rows=None)
        print_details(found, None if operators else HEAVIEST)
    else:
        print("\n".join(map(one_line, [*live_lines(found), found.message or f"{found.name} is {found.state.value}"])))


def _answer(client: Client, job: JobStatus) -> Answer:
    """With what the log has of other runtimes at the job's shares."""
    times = times_of_job(job, client.runtime_times(job.model))
    return answer_of(job, times, "" if times else "'fractune compete BUNDLE --model MODEL --record' does that")


def cancel(job: JobArgument, as_json: options.Json = False, *, place: options.Place) -> None:
    """Cancel a job; its measurements stay in the log."""
    with session(Client, **vars(place)) as client:
        cancelled = client.job(job).cancel()
    if as_json:
        print_json(job_json(cancelled))
    else:
        print(f"{cancelled.name} is {cancelled.state.value}")


def workers(
    shares: Annotated[str, typer.Option("--shares", help="Without a server: shares to start measurers for.")] = "cpu:1",
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """List the workers and the available shares."""
    named = share_names(shares)
    if named_server(place.state, place.server) is None and running_stack_of(place.state) is None:
        folder = place.state or default_state_dir()
        print(f"no stack is running in {folder}: this command starts these workers and ends them", file=sys.stderr)
    with session(Client, **vars(place), shares=named, compile=True, search=True) as client:
        found = client.workers()
    if as_json:
        print_json(*map(worker_json, found))
        return
    _workers_table(found).print()


def _workers_table(found: Sequence[Worker]) -> Table:
    columns = (
        *(Column("worker"), Column("role"), Column("now", dispensable=5)),
        *(Column("host", dispensable=2), Column("pid", dispensable=3)),
        *(Column("share"), Column("granted", dispensable=1), Column("device", dispensable=4)),
    )
    return Table(columns, tuple(map(_worker_cells, found)))


def _worker_cells(worker: Worker) -> tuple[str, ...]:
    granted, device = worker.granted, worker.device.key if worker.device else ""
    units = f"{granted.units} of {units_text(granted.units_total, granted.unit)}" if granted else ""
    share = granted.share if granted else ""
    return worker.name, worker.role, worker.state, worker.host, str(worker.pid), share, units, device


def job_json(job: JobStatus) -> dict[str, Any]:
    return {
        "job": job.name,
        "model": job.model_name,
        "shares": list(job.shares),
        "priority": job.priority,
        "state": job.state.value,
        "trials_planned": job.progress.trials_planned,
        "trials_known": job.progress.trials_known,
        "candidates_done": job.progress.candidates_done,
        "candidates_shared": job.progress.candidates_shared,
        "created_at": job.created_at,
        "error": job.error,
        "message": job.message,
        "bundle": job.bundle,
    }


def worker_json(worker: Worker) -> dict[str, Any]:
    return {
        "worker": worker.name,
        "role": worker.role,
        "host": worker.host,
        "pid": worker.pid,
        "started_at": worker.started_at,
        "device": worker.device.to_json() if worker.device else None,
        "granted": worker.granted.to_json() if worker.granted else None,
        "state": worker.state,
    }
