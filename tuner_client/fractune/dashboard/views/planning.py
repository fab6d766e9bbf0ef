"""Models on the devices that serve them, the least CPU limit of one, and the slow-downs of two, by times of jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from fractune.dashboard.views import page
from fractune.dashboard.views.page import LEVELS, Bar, Bars, Block, Cell, Field, Page, Piece, block_of, job_label
from fractune.features.diff import compared, job_side
from fractune.features.fit.fit import fit_of_job
from fractune.features.pair.result import pairs_table
from fractune.features.plan.plan import JobDemand, PlannedDevice, PlanResult, plan_of_jobs
from fractune.features.plan.table import rate_text, summary
from fractune.server.job_status import JobStatus
from fractune.text.rendering import Table
from fractune.text.text import slowdown_text, time_text
from fractune_core.analysis.model_times import MeasuredPair
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import BadRequest, FractuneError, one_line
from fractune_core.jobs import JobState
from fractune_core.planning.devices import GPUS, Partitioning
from fractune_core.planning.plans import Plan, PlannedPart
from fractune_core.served import is_disturbed

_HOW = (
    "time together over time alone on the whole, with the 95 % interval",
    "where the whole is not known, it is over time alone at the share",
    "of several measurements of two models the newest undisturbed one is shown, else the newest; all are below",
)
_EMPTY = "no pair is in the log; 'fractune pair A.fractune B.fractune --record' measures one"


def pairs(found: Sequence[MeasuredPair]) -> Page:
    """`found` are the newest first."""
    return Page(
        "Pairs",
        {"pairs": [each.to_json() for each in found]},
        blocks=(_matrix(found), block_of(pairs_table(found), "All measurements", empty=_EMPTY)),
    )


def _matrix(found: Sequence[MeasuredPair]) -> Block:
    """A row for each model, a column for each co-runner."""
    cells: dict[tuple[str, str], Estimate] = {}
    for each in sorted(found, key=lambda pair: is_disturbed(pair.others_cores)):
        for one, other in (each.models, each.models[::-1]):
            ratio = one.slowdown or one.interference
            if ratio is not None:
                cells.setdefault((one.model_name, other.model_name), ratio)
    rows, beside = (sorted(set(names)) for names in zip(*cells, strict=True)) if cells else ([], [])
    columns = (("slow-down of", False), *((f"beside {one_line(name)}", True) for name in beside))
    shown = tuple((Cell(one_line(name)), *(_cell(cells.get((name, other))) for other in beside)) for name in rows)
    return Block("Slow-downs", columns, shown, _HOW if shown else (), _EMPTY)


def _cell(ratio: Estimate | None) -> Cell:
    if ratio is None:
        return Cell("-")
    return Cell(slowdown_text(ratio), level=sum(ratio.median - 1 > limit for limit in LEVELS))


_TO_DO = "choose a model, a rate of requests and a p99, and press Show"
_VERIFY = (
    "These limits are predicted from the job's times at whole cores. 'fractune fit BUNDLE --verify' times the model "
    "where it is served, and runs it under the real limit."
)

FoundLimits = tuple[Table, str] | str
"""The alternatives and the block `resources:` of the best, or why there are none"""


def find_limits(job: JobStatus, rate: str, p99: str) -> FoundLimits:
    """It takes some seconds of the processor."""
    try:
        return fit_of_job(job, rate, p99)
    except BadRequest as error:
        return str(error)


def goal_fields(given: Mapping[str, str]) -> list[Field]:
    """Of a goal."""
    return [
        Field("rate", given.get("rate", ""), "requests, such as 18/s"),
        Field("p99", given.get("p99", ""), "p99 at most, such as 50ms"),
    ]


def limits_shown(job: JobStatus, found: FoundLimits) -> tuple[list[tuple[str, Cell]], list[Block], dict[str, Any]]:
    """Facts, the alternatives as a table, and the same for programs."""
    by = ("job", Cell(job.name, page.job_path(job.name)))
    if isinstance(found, str):
        return [by, ("no limit", Cell(one_line(found)))], [], {"alternatives": None, "why": found}
    table, resources = found
    shown = block_of(table)
    facts = [by, ("Kubernetes", Cell(resources, is_code=True))]
    data = {"alternatives": list(table.rows), "resources": resources}
    return facts, [replace(shown, notes=(*shown.notes, _VERIFY))], data


def fitting(
    jobs: Sequence[JobStatus], job: JobStatus | None, given: Mapping[str, str], found: FoundLimits | None
) -> Page:
    """`jobs` are those to choose from; `given` are `job`, `rate` and `p99`; `found` is None before all are given."""
    done = [each for each in jobs if each.state is JobState.DONE]
    names, labels = ("", *(each.name for each in done)), ("none", *map(job_label, done))
    form = [Field("job", "" if job is None else job.name, "model", names, labels), *goal_fields(given)]
    data = {name: given.get(name) or None for name in ("job", "rate", "p99")}
    facts, blocks, answered = [("to do", Cell(_TO_DO))], list[Block](), dict[str, Any](alternatives=None)
    if job is not None and found is not None:
        facts, blocks, answered = limits_shown(job, found)
    return Page("Least CPU limit", {**data, **answered}, facts=facts, blocks=blocks, form=form, is_live=False)


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


MOST_MODELS = 8
"""a plan of more is one for `fractune plan`: the page would hold the processor for long"""
_MOST_DEVICES = 40
"""drawn; the table has all"""
_COLOURS = 6
_YES = "yes"

Asked = tuple[str, str, str]
"""of a model: job, rate, p99"""
Found = PlanResult | str
"""a plan, or why there is none"""


def asked_models(jobs: Sequence[str], rates: Sequence[str], p99s: Sequence[str]) -> list[Asked]:
    """The rows of the form with a job. Raises BadRequest for too many."""
    asked = [row for row in zip_longest(jobs, rates, p99s, fillvalue="") if row[0]]
    if len(asked) > MOST_MODELS:
        raise BadRequest(f"{len(asked)} models; a page plans {MOST_MODELS} at most, 'fractune plan' any number")
    return asked


def find_plan(demands: Sequence[JobDemand], pairs: Sequence[MeasuredPair], given: Mapping[str, str]) -> Found:
    """It takes some seconds of the processor."""
    try:
        device = PlannedDevice(given.get("gpu", ""), given.get("partitioning", ""), _count(given.get("devices", "")))
        return plan_of_jobs(demands, pairs, device, simulate=given.get("simulate") == _YES)
    except FractuneError as error:
        return str(error)


def planning(jobs: Sequence[JobStatus], asked: Sequence[Asked], given: Mapping[str, str], found: Found | None) -> Page:
    """`jobs` are those to choose from; `given` are the fields for all models; `found` is None before one is chosen."""
    data: dict[str, Any] = {
        "models": [dict(zip(("job", "rate", "p99"), row, strict=True)) for row in asked],
        **{name: given.get(name) or None for name in ("gpu", "partitioning", "devices", "simulate")},
        "plan": found.to_json() if isinstance(found, PlanResult) else None,
        "why": found if isinstance(found, str) else None,
    }
    form = [*_model_fields(jobs, asked), *_device_fields(given)]
    if found is None:
        to_do = "choose models with their rates and p99, or models without rates to divide one device, and press Show"
        return Page("Plan", data, facts=[("to do", Cell(to_do))], form=form, is_live=False)
    if isinstance(found, str):
        return Page("Plan", data, facts=[("no plan", Cell(one_line(found)))], form=form, is_live=False)
    plan = found.plan
    return Page(
        "Plan",
        data,
        facts=[("plan", Cell(summary(plan)[0]))],
        bars=[_bars(plan)],
        blocks=(
            block_of(found.table, "Parts of devices"),
            block_of(found.models, "Models"),
            block_of(found.slowdowns, "Slow-downs of measured pairs", empty=_no_pair(plan)),
        ),
        form=form,
        is_live=False,
    )


def _count(text: str) -> int | None:
    if not text.strip():
        return None
    if not text.strip().isdecimal():
        raise BadRequest(f"devices '{text}': write a number, or nothing for as many as needed")
    return int(text)


def _model_fields(jobs: Sequence[JobStatus], asked: Sequence[Asked]) -> list[Field]:
    """A row for each model, and one more to add another."""
    done = [each for each in jobs if each.state is JobState.DONE]
    names, labels = ("", *(each.name for each in done)), ("none", *map(job_label, done))
    rows = [*asked, *[("", "", "")] * max(1, 2 - len(asked))][:MOST_MODELS]
    return [
        field
        for number, (job, rate, p99) in enumerate(rows, 1)
        for field in (
            Field("job", job, "model", names, labels, group=f"model {number}"),
            Field("rate", rate, "requests, such as 18/s", group=f"model {number}"),
            Field("p99", p99, "p99 at most, such as 50ms", group=f"model {number}"),
        )
    ]


def _device_fields(given: Mapping[str, str]) -> list[Field]:
    gpus, ways = tuple(each.name for each in GPUS), tuple(each.value for each in Partitioning)
    return [
        Field("gpu", given.get("gpu", ""), "device", ("", *gpus), ("the jobs' host", *gpus), group="devices"),
        Field(
            *("partitioning", given.get("partitioning", ""), "divided by", ("", *ways), ("the usual", *ways)),
            group="devices",
        ),
        Field("devices", given.get("devices", ""), "devices at most", group="devices"),
        Field(*("simulate", given.get("simulate", ""), "simulate arrivals", ("", _YES), ("no", _YES)), group="devices"),
    ]


def _no_pair(plan: Plan) -> str:
    if len(plan.models) == 1:
        return "no co-runner of another model"
    return "no pair of these models is in the log; 'fractune pair A.fractune B.fractune --record' measures one"


def _bars(plan: Plan) -> Bars:
    colours = {model.name: number % _COLOURS for number, model in enumerate(plan.models)}
    drawn = plan.devices[:_MOST_DEVICES]
    left_out = f", the first {_MOST_DEVICES} of {len(plan.devices)}" if len(drawn) < len(plan.devices) else ""
    return Bars(
        f"Which model runs on which part of a device{left_out}; an empty part is not used",
        [
            Bar(f"device {number}", [_piece(part, plan.axis, colours[part.model]) for part in parts])
            for number, parts in enumerate(drawn)
        ],
    )


def _piece(part: PlannedPart, axis: int, colour: int) -> Piece:
    slower = f", x{part.slowdown:.2f} by co-runners" if part.slowdown > 1 else ""
    details = f"{part.share}, {time_text(part.latency_s)}{slower}"
    lines = (one_line(part.model), details, f"{rate_text(part.throughput_per_s)} requests/s")
    return Piece(100 * part.place / axis, 100 * part.length / axis, colour, lines)
