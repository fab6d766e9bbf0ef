"""The least CPU limit for a rate of requests and a p99, by the times of a job."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fractune.dashboard.views.page import Block, Cell, Field, Page, block_of, job_label, job_path
from fractune.features.fit.fit import fit_of_job
from fractune.server.job_status import JobStatus
from fractune.text.rendering import Table
from fractune_core.errors import BadRequest, one_line
from fractune_core.jobs import JobState

_TO_DO = "choose a model, a rate of requests and a p99, and press Show"
_VERIFY = (
    "These limits are predicted from the job's times at whole cores. 'fractune fit BUNDLE --verify' times the model "
    "where it is served, and runs it under the real limit."
)

Found = tuple[Table, str] | str
"""The alternatives and the block `resources:` of the best, or why there are none"""


def find_limits(job: JobStatus, rate: str, p99: str) -> Found:
    """It takes some seconds of the processor."""
    try:
        return fit_of_job(job, rate, p99)
    except BadRequest as error:
        return str(error)


def fields(given: Mapping[str, str]) -> list[Field]:
    """Of a goal."""
    return [
        Field("rate", given.get("rate", ""), "requests, such as 18/s"),
        Field("p99", given.get("p99", ""), "p99 at most, such as 50ms"),
    ]


def answer(job: JobStatus, found: Found) -> tuple[list[tuple[str, Cell]], list[Block], dict[str, Any]]:
    """Facts, the alternatives as a table, and the same for programs."""
    by = ("job", Cell(job.name, job_path(job.name)))
    if isinstance(found, str):
        return [by, ("no limit", Cell(one_line(found)))], [], {"alternatives": None, "why": found}
    table, resources = found
    shown = block_of(table)
    facts = [by, ("Kubernetes", Cell(resources, is_code=True))]
    data = {"alternatives": list(table.rows), "resources": resources}
    return facts, [replace(shown, notes=(*shown.notes, _VERIFY))], data


def fitting(jobs: Sequence[JobStatus], job: JobStatus | None, given: Mapping[str, str], found: Found | None) -> Page:
    """`jobs` are those to choose from; `given` are `job`, `rate` and `p99`; `found` is None before all are given."""
    done = [each for each in jobs if each.state is JobState.DONE]
    names, labels = ("", *(each.name for each in done)), ("none", *map(job_label, done))
    form = [Field("job", "" if job is None else job.name, "model", names, labels), *fields(given)]
    data = {name: given.get(name) or None for name in ("job", "rate", "p99")}
    facts, blocks, answered = [("to do", Cell(_TO_DO))], list[Block](), dict[str, Any](alternatives=None)
    if job is not None and found is not None:
        facts, blocks, answered = answer(job, found)
    return Page("Least CPU limit", {**data, **answered}, facts=facts, blocks=blocks, form=form, is_live=False)
