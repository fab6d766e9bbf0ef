"""Jobs, workers and shares at a glance."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from fractune.dashboard.reading.following import Snapshot
from fractune.dashboard.views.page import Block, Cell, Page
from fractune.dashboard.views.words import ENDED, counts_block, job_data, jobs_block, moment
from fractune.server.job_status import JobStatus, Worker
from fractune_core.jobs import JobState
from fractune_core.shares import units_text


def overview(seen: Snapshot) -> Page:
    running = [job for job in seen.jobs if job.state not in (*ENDED, JobState.QUEUED)]
    waiting = [job for job in seen.jobs if job.state is JobState.QUEUED]
    ended = [job for job in seen.jobs if job.state in ENDED]
    failures: Counter[str] = Counter()
    for job in running:
        failures.update(job.failures)
    rate = sum(job.trials_per_s for job in running if job.state is JobState.TUNING)
    return Page(
        "Overview",
        {
            "server": seen.address,
            "taken_at": seen.taken_at,
            "lost": seen.lost or None,
            "trials_per_s": rate,
            "jobs": [job_data(job) for job in seen.jobs],
            "workers": [asdict(worker) for worker in seen.workers],
        },
        facts=(
            ("server", Cell(seen.address)),
            ("jobs", Cell(f"{len(running)} running, {len(waiting)} waiting, {len(ended)} ended")),
            ("workers", Cell(_roles(seen.workers))),
            ("trials a second", Cell(f"{rate:.1f}")),
        ),
        blocks=(
            jobs_block("Running", running, "no job is running; 'fractune tune' starts one"),
            jobs_block("Waiting", waiting, "no job is waiting"),
            counts_block("Failed measurements of running jobs", "cause", failures, "none failed"),
            _workers(seen.workers, _doing(running)),
            jobs_block("Ended", ended, "no job has ended yet", seen.jobs),
        ),
    )


def _roles(workers: tuple[Worker, ...]) -> str:
    counts = Counter(worker.role for worker in workers)
    return ", ".join(f"{count} {role}" for role, count in sorted(counts.items())) or "none"


def _doing(running: list[JobStatus]) -> str:
    """What the roles work for: a server does not say which worker has which piece."""
    return ", ".join(dict.fromkeys(job.state.value for job in running)) or "idle"


def _workers(workers: tuple[Worker, ...], doing: str) -> Block:
    columns = (
        *(("worker", False), ("role", False), ("host", False), ("pid", True), ("share", False), ("granted", False)),
        *(("device", False), ("since", False)),
    )
    notes = (f"phases of the running jobs: {doing}",) if workers else ()
    return Block("Workers", columns, tuple(map(_worker_row, workers)), notes, "no worker is there; start one")


def _worker_row(worker: Worker) -> tuple[Cell, ...]:
    granted, device = worker.granted, worker.device
    share = (
        ("-", "-") if granted is None else (granted.share, _granted(granted.units, granted.units_total, granted.unit))
    )
    return (
        Cell(worker.name.removeprefix("workers/")),
        Cell(worker.role),
        Cell(worker.host),
        Cell(str(worker.pid)),
        *map(Cell, share),
        Cell("-" if device is None else device.isa),
        moment(worker.started_at),
    )


def _granted(units: int, total: int, unit: str) -> str:
    return f"{units} of {units_text(total, unit)}"
