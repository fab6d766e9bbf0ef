"""Two jobs beside each other: as `fractune diff` prints it."""

from __future__ import annotations

from collections.abc import Sequence

from fractune.dashboard.views.page import Field, Page, block_of
from fractune.features.diff.diff import compared
from fractune.features.diff.sides import job_side
from fractune.server.job_status import JobStatus


def comparison(before: JobStatus | None, after: JobStatus | None, names: Sequence[str]) -> Page:
    """`names` are those of the newest jobs, to choose from."""
    form = [
        Field(side, "" if job is None else job.name, label, ("", *names))
        for side, job, label in (("a", before, "before"), ("b", after, "after"))
    ]
    if before is None or after is None:
        return Page("Compare", {"changes": None}, form=form, is_live=False)
    found = compared(job_side(before), job_side(after))
    return Page(
        "Compare",
        {"before": before.name, "after": after.name, "changes": [each.to_json() for each in found.changes]},
        blocks=(block_of(found.table),),
        form=form,
        is_live=False,
    )
