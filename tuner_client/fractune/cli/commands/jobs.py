"""`fractune jobs`, and commands about one job (`show`, `watch`, `diff` ...) or many (`cost`, `retune`, `workers`)."""

import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fractune.cli import options
from fractune.cli.ending import end_without, run_when_done
from fractune.cli.printing import HEAVIEST, choose_view, print_answer, print_details, print_json, print_tables
from fractune.features.client import Client
from fractune.features.compete.results import times_of_job
from fractune.features.cost import DEFAULT_LIMIT as COST_LIMIT, cost as costs_of
from fractune.features.diff import diff as diff_of
from fractune.features.retune import DEFAULT_LIMIT as RETUNE_LIMIT, retune as retune_models
from fractune.features.tune.answer import Answer, answer_json, answer_of
from fractune.features.tune.table import result_json
from fractune.local.state import default_state_dir
from fractune.server.job_status import JobStatus, Worker
from fractune.sessions.progress import live_lines
from fractune.sessions.session import named_server, running_stack_of, server_session, session
from fractune.text.output_files import new_bundle
from fractune.text.rendering import Column, Table
from fractune.text.text import parse_lifetime_s
from fractune_core.errors import JobFailed, one_line
from fractune_core.jobs import JobSpec, JobState, Priority
from fractune_core.shares import share_names, units_text


def retune(
    shares: Annotated[str, typer.Option("--shares", metavar="cpu:1,cpu:2", help="Shares to tune for.")],
    models: Annotated[str, typer.Option("--models", metavar="TEXT", help="Part of the models' names.")] = "",
    device: Annotated[
        str, typer.Option("--device", metavar="KEY", help="Only models measured on a device with this in its key.")
    ] = "",
    tvm: Annotated[
        str, typer.Option("--tvm", metavar="VERSION", help="Only models that this version of TVM measured last.")
    ] = "",
    trials: Annotated[
        int | None, typer.Option("--trials", help=f"Candidates of each model (default: {JobSpec.trials}).")
    ] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Stop each search after this long.")] = None,
    priority: Annotated[Priority, typer.Option("--priority", help="Share of the fleet.")] = Priority.LOW,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Look at this many of the newest jobs.")] = RETUNE_LIMIT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the models, in their order.")] = False,
    as_json: options.Json = False,
    *,
    place: options.JobPlace,
) -> None:
    """Tune the known models again: for other shares or new hardware."""
    found = retune_models(
        shares,
        trials=trials,
        minutes=minutes,
        models=models,
        device=device,
        tvm=tvm,
        priority=priority,
        limit=limit,
        dry_run=dry_run,
        progress=choose_view(quiet=False, as_json=as_json),
        **vars(place),
    )
    table = found.table
    if as_json:
        for row in table.rows:
            print(json.dumps({"event": "retuned", **row}))
    else:
        table.print()
        for note in table.notes:
            print(note)
    if failed := sum(bool(each.error) for each in found.models):
        raise JobFailed(f"{failed} of {len(found.models)} models could not be tuned; the table has the reasons")
    end_without(found.skipped_shares)


_SIDE = "Name of a job, or a bundle's file."


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    after: Annotated[str, typer.Argument(metavar="B", help=_SIDE)],
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Show what got faster from one job or bundle to another."""
    found = diff_of(before, after, **vars(place))
    if as_json:
        sides = {"before": found.before.to_json(), "after": found.after.to_json()}
        print(json.dumps({"event": "sides", **sides, "notes": found.notes}))
        for each in found.changes:
            print(json.dumps({"event": "change", **each.to_json()}))
        return
    found.table.print()
    for line in found.table.notes:
        print(line)


def cost(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="One job (default: the newest --limit jobs).")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="30d", help="Only work that ended within this time (12h, 30d).")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option("--prices", metavar="FILE.toml", help="Prices of an hour; adds the cost in money.")
    ] = None,
    by_token: Annotated[
        bool, typer.Option("--by-token", help="A row for each token; needs a token of the scope admin.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many jobs, newest first.")] = COST_LIMIT,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Show the use of the fleet by jobs: share-seconds, CPU seconds, money. Money needs --prices."""
    began = None if since is None else time.time() - parse_lifetime_s("--since", since)
    found = costs_of(job, since=began, prices=prices, tokens=by_token, limit=limit, **vars(place))
    table = found.by_token if by_token else found.table
    if as_json:
        for row in table.rows:
            print(json.dumps(row))
    else:
        print(table)


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
