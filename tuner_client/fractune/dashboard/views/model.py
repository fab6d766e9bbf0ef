"""A model over its jobs."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType

from fractune.dashboard.views import page, planning
from fractune.dashboard.views.job import answer_text
from fractune.dashboard.views.page import Block, Cell, Chart, Field, Page, Series, block_of, inputs_text, job_data
from fractune.dashboard.views.planning import FoundLimits
from fractune.features.compete.results import newest_times, runtimes_table, times_of_job
from fractune.features.knee.report import KneeReport, at_load_knee, drawn_units, fastest_knee, knee_json, knee_table
from fractune.features.log.match import MatchResult
from fractune.features.matrix.cross_table import model_table
from fractune.server.job_status import JobStatus
from fractune.text.text import disturbed_notes, marked_time, ratio_text, untuned_notes
from fractune_core.analysis.model_times import RuntimeTime
from fractune_core.errors import one_line
from fractune_core.files.bundles import SUFFIX
from fractune_core.jobs import JobState
from fractune_core.names import Collection
from fractune_core.shares import unit_name, units_text

_MOST_VERSIONS = 8
_LONG = 10
"""rows: a longer table is folded"""
_SLACK = 0.1
"""as `fractune knee` takes it by default"""


def first_share(jobs: Sequence[JobStatus]) -> str:
    """Empty without jobs."""
    return next((share for each in jobs for share in each.tuned_at), "")


def versions(newest: JobStatus, jobs: Sequence[JobStatus]) -> list[JobStatus]:
    """Of the `jobs` the newest ones that are done, of other files with the same name."""
    alike = [
        each
        for each in jobs
        if each.model_name == newest.model_name and each.model != newest.model and each.state is JobState.DONE
    ]
    return alike[:_MOST_VERSIONS]


def model(
    digest: str,
    jobs: Sequence[JobStatus],
    others: Sequence[JobStatus] = (),
    runtimes: Sequence[RuntimeTime] = (),
    share: str = "",
    used: MatchResult | str | None = None,
    goal: Mapping[str, str] = MappingProxyType({}),
    limits: FoundLimits | None = None,
) -> Page:
    """`jobs` are those of the model, at least one and the newest first, the ended ones with results; `others` are of
    files with its name. `runtimes` are times of other runtimes, the newest first. `used` is what its operators use at
    `share`, or why that is not known. `limits` keep the `goal`, by the times of the newest of them.
    """
    done = [each for each in jobs if each.results]
    knees = _knees(done[0]) if done else []
    facts, fits, answered = ([], [], None) if limits is None else planning.limits_shown(done[0], limits)
    shares = tuple(dict.fromkeys([share, *(at for each in jobs for at in each.tuned_at)]))
    timed = newest_times(runtimes)
    return Page(
        f"Model {one_line(jobs[0].model_name)}",
        {
            "sha256": digest,
            "model_name": jobs[0].model_name,
            "jobs": [job_data(each) for each in jobs],
            "other_files": [job_data(each) for each in others],
            "runtimes": [each.to_json() for each in timed],
            "matrix": page.heat_data(done[0]) if done else None,
            "match": {"share": share, "operators": used.to_json()} if isinstance(used, MatchResult) else None,
            "knee": [knee_json(each) for each in knees],
            "fit": answered,
        },
        lead=f"the newest job: {answer_text(done[0], times_of_job(done[0], runtimes))}" if done else "",
        facts=(("sha256", Cell(digest)), ("fit", Cell(_fit_command(jobs[0], goal), is_code=True)), *facts),
        charts=[*_history(jobs, others), *map(_knee_chart, knees)],
        blocks=(
            *fits,
            *([page.heat_block(done[0])] if done else []),
            *([block_of(knee_table(knees, "The knee"))] if knees else []),
            *([_used(share, used)] if used is not None else []),
            _times("Latency, job by job", done, "no job of it is done"),
            *([block_of(runtimes_table(timed), is_folded=True)] if timed else []),
            *([_times("Other files of this name", others, "")] if others else []),
            page.jobs_block("Its jobs", list(jobs), ""),
        ),
        form=[Field("share", share, "share at which it runs", shares), *(planning.goal_fields(goal) if done else [])]
        if share
        else (),
        is_live=limits is None,
    )


def _history(jobs: Sequence[JobStatus], others: Sequence[JobStatus]) -> list[Chart]:
    """The latency at each share over the jobs that are done with the newest one's inputs, of all files of the name."""
    done = [each for each in jobs if each.state is JobState.DONE]
    alike = [each for each in (*done, *others) if inputs_text(each) == inputs_text(done[0])] if done else []
    in_order = sorted(alike, key=lambda each: each.created_at)
    if len(in_order) < 2:
        return []
    times = [{one.share: 1e3 * one.tuned_s for one in each.results} for each in in_order]
    shares = list(dict.fromkeys(share for each in times for share in each))
    series = [Series(share, [each.get(share) for each in times], "line") for share in shares]
    x = [float(number) for number in range(1, len(in_order) + 1)]
    return [Chart("latency job by job", "jobs that are done, the oldest first", "ms", x, series)]


def _used(share: str, used: MatchResult | str) -> Block:
    heading = f"What each operator uses at {one_line(share)}"
    if isinstance(used, str):
        return Block(heading, (), (), empty=one_line(used))
    return block_of(used.table, heading, is_folded=len(used.table.cells) > _LONG)


def _fit_command(job: JobStatus, goal: Mapping[str, str]) -> str:
    """The command that also runs the bundle, by its usual name, under the limit."""
    bundle = f"./{PurePath(one_line(job.model_name) or 'MODEL').stem}{SUFFIX}"
    rate, p99 = (one_line(goal.get(name) or usual) for name, usual in (("rate", "18/s"), ("p99", "50ms")))
    return shlex.join(["fractune", "fit", bundle, "--rate", rate, "--p99", p99, "--verify"])


def _knees(job: JobStatus) -> list[KneeReport]:
    """The knees, as `fractune knee` finds them; nothing for a job with times at fewer than two shares."""
    table, granted = model_table(job), {each.share: each.granted for each in job.results}
    if len({each.units for each in granted.values()}) < 2 or not all(map(table.fastest, table.shares)):
        return []
    found = [fastest_knee(table, granted, _SLACK), at_load_knee(table, granted, _SLACK)]
    return [each for each in found if each is not None]


def _knee_chart(report: KneeReport) -> Chart:
    """What was measured, the curve through it, or what is possible between, and the knee."""
    curve, knee, units = report.curve, report.knee, drawn_units(report)
    bounds = [curve.bounds_at(each) for each in units]
    lines: dict[str, list[float]] = {}
    if curve.fit is not None:
        lines = {"curve": [curve.secs_at(each) for each in units]}
    elif any(high > low for low, high in bounds):
        lines = {"at most": [high for _, high in bounds], "at least": [low for low, _ in bounds]}
    measured: list[float | None] = [curve.measured.get(each) for each in units]
    series = [
        *(Series(name, [1e3 * secs for secs in found], "line") for name, found in lines.items()),
        Series("measured", [None if secs is None else 1e3 * secs for secs in measured], "dots"),
    ]
    if knee.units is not None and knee.secs is not None:
        series.append(Series("knee", [1e3 * knee.secs if each == knee.units else None for each in units], "dots"))
    at = "" if knee.units is None else f": knee at {units_text(knee.units, report.unit)}"
    title = f"{one_line(report.name)}{at}"
    return Chart(title, f"{unit_name(report.unit)}s", "ms", list(map(float, units)), series)


def _times(heading: str, done: Sequence[JobStatus], empty: str) -> Block:
    """The latencies of jobs that are done, with the shapes of the inputs if they differ."""
    shaped = len({inputs_text(each) for each in done}) > 1
    columns = (
        *(("job", False), ("created", False), *([("inputs", False)] if shaped else []), ("share", False)),
        *(("untuned", True), ("tuned", True), ("gain", True)),
    )
    rows = tuple(
        (
            Cell(Collection.JOBS.parse(each.name), page.job_path(each.name)),
            page.moment(each.created_at),
            *([Cell(inputs_text(each) or "-")] if shaped else []),
            Cell(result.share),
            Cell(marked_time(result.untuned_s, at_most=result.is_untuned_at_most)),
            Cell(marked_time(result.tuned_s, at_most=result.is_disturbed)),
            Cell(ratio_text(result.untuned_s, result.tuned_s)),
        )
        for each in done
        for result in each.results
    )
    results = [result for each in done for result in each.results]
    notes = (*untuned_notes(results), *disturbed_notes(results))
    return Block(heading, columns, rows, notes, empty=empty)
