"""A model over its jobs."""

from __future__ import annotations

from collections.abc import Sequence

from fractune.dashboard.views.page import (
    Block,
    Cell,
    Chart,
    Field,
    Page,
    Series,
    block_of,
    heat_block,
    heat_data,
    inputs_text,
    job_data,
    job_path,
    jobs_block,
    moment,
)
from fractune.features.compete.logged import newest, runtimes_table
from fractune.features.knee.report import at_load_knee, fastest_knee
from fractune.features.knee.table import knee_table
from fractune.features.log.match import MatchResult
from fractune.features.matrix.cross_table import model_table
from fractune.server.job_status import JobStatus
from fractune.text.text import disturbed_notes, marked_time, ratio_text, untuned_notes
from fractune_core.analysis.runtime_times import RuntimeTime
from fractune_core.errors import one_line
from fractune_core.jobs import JobState
from fractune_core.names import Collection

_MOST_VERSIONS = 8
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
) -> Page:
    """`jobs` are those of the model, at least one and the newest first, the ended ones with results; `others` are of
    files with its name. `runtimes` are times of other runtimes, the newest first. `used` is what its operators use at
    `share`, or why that is not known.
    """
    done = [each for each in jobs if each.results]
    shares = tuple(dict.fromkeys([share, *(at for each in jobs for at in each.tuned_at)]))
    timed = newest(runtimes)
    return Page(
        f"Model {one_line(jobs[0].model_name)}",
        {
            "sha256": digest,
            "model_name": jobs[0].model_name,
            "jobs": [job_data(each) for each in jobs],
            "other_files": [job_data(each) for each in others],
            "runtimes": [each.to_json() for each in timed],
            "matrix": heat_data(done[0]) if done else None,
            "match": {"share": share, "operators": used.to_json()} if isinstance(used, MatchResult) else None,
        },
        facts=(("sha256", Cell(digest)), ("jobs", Cell(str(len(jobs))))),
        charts=_history(jobs, others),
        blocks=(
            *([heat_block(done[0]), *_knee(done[0])] if done else []),
            *([_used(share, used)] if used is not None else []),
            _times("Latency, job by job", done, "no job of it is done"),
            *([block_of(runtimes_table(timed), is_folded=True)] if timed else []),
            *([_times("Other files of this name", others, "")] if others else []),
            jobs_block("Its jobs", list(jobs), ""),
        ),
        form=[Field("share", share, "share at which it runs", shares)] if share else (),
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
    series = [Series(share, [each.get(share) for each in times]) for share in shares]
    x = [float(number) for number in range(1, len(in_order) + 1)]
    return [Chart("latency job by job", "jobs that are done, the oldest first", "ms", x, series)]


def _used(share: str, used: MatchResult | str) -> Block:
    heading = f"What each operator uses at {one_line(share)}"
    if isinstance(used, str):
        return Block(heading, (), (), empty=one_line(used))
    return block_of(used.table, heading)


def _knee(job: JobStatus) -> list[Block]:
    """The knee, as `fractune knee` finds it; nothing for a job with times at fewer than two shares."""
    table, granted = model_table(job), {each.share: each.granted for each in job.results}
    if len({each.units for each in granted.values()}) < 2 or not all(map(table.fastest, table.shares)):
        return []
    found = [fastest_knee(table, granted, _SLACK), at_load_knee(table, granted, _SLACK)]
    return [block_of(knee_table([each for each in found if each is not None], "The knee"))]


def _times(heading: str, done: Sequence[JobStatus], empty: str) -> Block:
    """The latencies of jobs that are done, with the shapes of the inputs if they differ."""
    shaped = len({inputs_text(each) for each in done}) > 1
    columns = (
        *(("job", False), ("created", False), *([("inputs", False)] if shaped else []), ("share", False)),
        *(("untuned", True), ("tuned", True), ("gain", True)),
    )
    rows = tuple(
        (
            Cell(Collection.JOBS.parse(each.name), job_path(each.name)),
            moment(each.created_at),
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
