"""Two jobs beside each other: as `fractune diff` prints it."""

from __future__ import annotations

from collections.abc import Sequence

from fractune.dashboard.views.page import Cell, Field, Page, block_of
from fractune.dashboard.views.words import job_label
from fractune.features.diff.diff import compared
from fractune.features.diff.sides import job_side
from fractune.server.job_status import JobStatus


def comparison(before: JobStatus | None, after: JobStatus | None, jobs: Sequence[JobStatus]) -> Page:
    """`jobs` are the newest ones, to choose from."""
    names = ("", *(each.name for each in jobs))
    labels = ("none", *map(job_label, jobs))
    form = [
        Field(side, "" if job is None else job.name, label, names, labels)
        for side, job, label in (("a", before, "before"), ("b", after, "after"))
    ]
    if before is None or after is None:
        missing = "two jobs" if before is after else "the job after it" if after is None else "the job before it"
        facts = (("to do", Cell(f"choose {missing}, and press Show")),)
        return Page("Compare", {"changes": None}, facts=facts, form=form, is_live=False)
    found = compared(job_side(before), job_side(after))
    return Page(
        "Compare",
        {"before": before.name, "after": after.name, "changes": [each.to_json() for each in found.changes]},
        blocks=(block_of(found.table),),
        form=form,
        is_live=False,
    )
