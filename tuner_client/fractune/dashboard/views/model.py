"""A model over its jobs."""

from __future__ import annotations

from collections.abc import Sequence

from fractune.dashboard.views.heat import heat_block, heat_data
from fractune.dashboard.views.page import Block, Cell, Page
from fractune.dashboard.views.words import job_data, job_path, jobs_block, moment
from fractune.server.job_status import JobStatus
from fractune.text.text import ratio_text, time_text
from fractune_core.errors import one_line
from fractune_core.names import Collection


def model(digest: str, jobs: Sequence[JobStatus]) -> Page:
    """`jobs` are those of the model, the newest first, the ended ones with results."""
    done = [each for each in jobs if each.results]
    name = one_line(jobs[0].model_name) if jobs else digest
    return Page(
        f"Model {name}",
        {
            "sha256": digest,
            "model_name": jobs[0].model_name if jobs else None,
            "jobs": [job_data(each) for each in jobs],
            "matrix": heat_data(done[0]) if done else None,
        },
        facts=(("sha256", Cell(digest)), ("jobs", Cell(str(len(jobs))))),
        blocks=(
            *([heat_block(done[0])] if done else []),
            _history(done),
            jobs_block("Its jobs", list(jobs), "the newest jobs of this server are of other models"),
        ),
    )


def _history(done: Sequence[JobStatus]) -> Block:
    columns = (("job", False), ("created", False), ("share", False), ("untuned", True), ("tuned", True), ("gain", True))
    rows = tuple(
        (
            Cell(Collection.JOBS.parse(each.name), job_path(each.name)),
            moment(each.created_at),
            Cell(result.share),
            Cell(time_text(result.untuned_s)),
            Cell(time_text(result.tuned_s)),
            Cell(ratio_text(result.untuned_s, result.tuned_s)),
        )
        for each in done
        for result in each.results
    )
    return Block("Latency, job by job", columns, rows, empty="no job of it is done")
