"""Jobs, workers and shares at a glance."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from fractune.dashboard.following import Snapshot
from fractune.dashboard.views.page import ENDED, Block, Cell, Page, failures_block, job_data, jobs_block, moment
from fractune.server.job_status import WaitingWork, Worker
from fractune.text.text import time_text
from fractune_core.jobs import JobState
from fractune_core.shares import units_text


def overview(seen: Snapshot) -> Page:
    running = [job for job in seen.jobs if job.state not in (*ENDED, JobState.QUEUED)]
    waiting = [job for job in seen.jobs if job.state is JobState.QUEUED]
    ended = [job for job in seen.jobs if job.state in ENDED]
    failures: Counter[str] = Counter()
    for job in running:
        failures.update(job.progress.failures)
    workers = seen.fleet.workers
    rate = sum(job.progress.trials_per_s for job in running if job.state is JobState.TUNING)
    return Page(
        "Overview",
        {
            "server": seen.address,
            "taken_at": seen.taken_at,
            "lost": seen.lost or None,
            "trials_per_s": rate,
            "jobs": [job_data(job) for job in seen.jobs],
            "workers": [asdict(worker) for worker in workers],
            "waiting": [asdict(each) for each in seen.fleet.waiting],
        },
        facts=(
            ("server", Cell(seen.address)),
            ("jobs", Cell(f"{len(running)} running, {len(waiting)} waiting, {len(ended)} ended")),
            ("workers", Cell(_roles(workers))),
            ("trials a second", Cell(f"{rate:.1f}")),
        ),
        blocks=(
            jobs_block("Running", running, "no job is running; 'fractune tune' starts one"),
            jobs_block("Waiting", waiting, "no job is waiting"),
            failures_block("Failed measurements of running jobs", failures),
            _waiting(seen.fleet.waiting, seen.taken_at),
            _workers(workers),
            jobs_block("Ended", ended, "no job has ended yet", seen.jobs),
        ),
    )


def _roles(workers: tuple[Worker, ...]) -> str:
    counts = Counter(worker.role for worker in workers)
    return ", ".join(f"{count} {role}" for role, count in sorted(counts.items())) or "none"


def _waiting(waiting: tuple[WaitingWork, ...], now: float) -> Block:
    columns = (("for", False), ("share", False), ("pieces", True), ("oldest waits for", True))
    rows = tuple(
        (
            Cell(each.role),
            Cell(each.share or "-"),
            Cell(str(each.pieces)),
            Cell("-" if each.oldest_at is None else time_text(max(0.0, now - each.oldest_at))),
        )
        for each in waiting
    )
    return Block("Work in queues", columns, rows, (), "no work waits for a worker")


def _workers(workers: tuple[Worker, ...]) -> Block:
    columns = (
        *(("worker", False), ("role", False), ("now", False), ("host", False), ("pid", True), ("share", False)),
        *(("granted", False), ("device", False), ("since", False)),
    )
    return Block("Workers", columns, tuple(map(_worker_row, workers)), (), "no worker is there; start one")


def _worker_row(worker: Worker) -> tuple[Cell, ...]:
    granted, device = worker.granted, worker.device
    share = (
        ("-", "-") if granted is None else (granted.share, _granted(granted.units, granted.units_total, granted.unit))
    )
    return (
        Cell(worker.name.removeprefix("workers/")),
        Cell(worker.role),
        Cell(worker.state or "-"),
        Cell(worker.host),
        Cell(str(worker.pid)),
        *map(Cell, share),
        Cell("-" if device is None else device.isa),
        moment(worker.started_at),
    )


def _granted(units: int, total: int, unit: str) -> str:
    return f"{units} of {units_text(total, unit)}"
