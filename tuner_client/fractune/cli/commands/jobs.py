"""`fractune jobs`, `watch`, `cancel`, `bundle` and `workers`: what a server is doing."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from fractune.cli import options
from fractune.cli.progress import choose_view
from fractune.cli.session import session
from fractune.cli.submit import follow
from fractune.reports.result import check_ended_well, print_result, result_json
from fractune.reports.text import table_console
from fractune_core.convert import device_from_proto, granted_from_proto, seconds, state_from_proto, when
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.shares import units_text

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, with or without 'jobs/'.")]


def jobs(
    open_only: Annotated[bool, typer.Option("--open", help="Only jobs that have not ended.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many, newest first.")] = 50,
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """List jobs, newest first."""
    with session(state, server) as client:
        found = list(client.jobs(open_only=open_only, limit=limit))
    if as_json:
        for job in found:
            print(json.dumps(job_json(job)))
        return
    table = Table("job", "model", "shares", "state", "trials", "created (UTC)", "message")
    for job in found:
        trials = f"{job.progress.candidates_done}/{job.progress.trials_planned}"
        created = f"{when(job.create_time):%Y-%m-%d %H:%M:%S}"
        shares, job_state = ", ".join(job.spec.shares), state_from_proto(job.state).value
        table.add_row(job.name, job.model_display_name, shares, job_state, trials, created, job.message)
    table_console().print(table)


def watch(
    job: JobArgument,
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Follow a job until it ends; Ctrl-C stops watching, not the job."""
    with session(state, server) as client:
        with choose_view(quiet=False, as_json=as_json) as view:
            ended = follow(client, job, view.show)
        check_ended_well(ended)
    if as_json:
        print(json.dumps(result_json(ended, ended.result.bundle)))
    else:
        print_result(ended, ended.result.bundle)


def cancel(
    job: JobArgument,
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Cancel a job; what it has measured stays in the log."""
    with session(state, server) as client:
        cancelled = client.cancel_job(job)
    if as_json:
        print(json.dumps(job_json(cancelled)))
    else:
        print(f"{cancelled.name} is {state_from_proto(cancelled.state).value}")


def workers(
    shares: Annotated[str, typer.Option("--shares", help="Without --server: shares to start measurers for.")] = "cpu:1",
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """List the workers, and the shares that can be asked for."""
    offered = () if server is not None else tuple(shares.split(","))
    with session(state, server, shares=offered, compile=True, search=True) as client:
        found = sorted(client.workers(), key=lambda worker: (worker.role, worker.name))
    if as_json:
        for worker in found:
            print(json.dumps(worker_json(worker)))
        return
    table = Table("worker", "role", "host", "pid", "share", "granted", "device")
    for worker in found:
        granted = worker.granted
        units = f"{granted.units} of {units_text(granted.units_total, granted.unit)}" if granted.share else ""
        device = device_from_proto(worker.device).key if worker.HasField("device") else ""
        table.add_row(worker.name, worker.role, worker.host, str(worker.pid), granted.share, units, device)
    table_console().print(table)


def job_json(job: pb.Job) -> dict[str, Any]:
    return {
        "job": job.name,
        "model": job.model_display_name,
        "shares": list(job.spec.shares),
        "state": state_from_proto(job.state).value,
        "trials_planned": job.progress.trials_planned,
        "candidates_done": job.progress.candidates_done,
        "created_at": seconds(job.create_time),
        "error": job.error,
        "message": job.message,
        "bundle": job.result.bundle,
    }


def worker_json(worker: pb.Worker) -> dict[str, Any]:
    measures = worker.HasField("granted")
    return {
        "worker": worker.name,
        "role": worker.role,
        "host": worker.host,
        "pid": worker.pid,
        "started_at": seconds(worker.start_time),
        "device": device_from_proto(worker.device).to_json() if measures else None,
        "granted": granted_from_proto(worker.granted).to_json() if measures else None,
    }
