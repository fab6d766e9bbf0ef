"""A model over its jobs."""

from __future__ import annotations

from collections.abc import Sequence

from fractune.dashboard.views.heat import heat_block, heat_data
from fractune.dashboard.views.page import Block, Cell, Field, Page, block_of
from fractune.dashboard.views.words import job_data, job_path, jobs_block, moment
from fractune.features.log.match import MatchResult
from fractune.server.job_status import JobStatus
from fractune.text.text import ratio_text, time_text
from fractune_core.errors import one_line
from fractune_core.names import Collection


def first_share(jobs: Sequence[JobStatus]) -> str:
    """Empty without jobs."""
    return next((share for each in jobs for share in each.tuned_at), "")


def model(digest: str, jobs: Sequence[JobStatus], share: str = "", used: MatchResult | str | None = None) -> Page:
    """`jobs` are those of the model, the newest first, the ended ones with results. `used` is what its operators use
    at `share`, or why that is not known.
    """
    done = [each for each in jobs if each.results]
    shares = tuple(dict.fromkeys([share, *(at for each in jobs for at in each.tuned_at)]))
    name = one_line(jobs[0].model_name) if jobs else digest
    return Page(
        f"Model {name}",
        {
            "sha256": digest,
            "model_name": jobs[0].model_name if jobs else None,
            "jobs": [job_data(each) for each in jobs],
            "matrix": heat_data(done[0]) if done else None,
            "match": {"share": share, "operators": used.to_json()} if isinstance(used, MatchResult) else None,
        },
        facts=(("sha256", Cell(digest)), ("jobs", Cell(str(len(jobs))))),
        blocks=(
            *([heat_block(done[0])] if done else []),
            *([_used(share, used)] if used is not None else []),
            _history(done),
            jobs_block("Its jobs", list(jobs), "the newest jobs of this server are of other models"),
        ),
        form=[Field("share", share, "share at which it runs", shares)] if share else (),
    )


def _used(share: str, used: MatchResult | str) -> Block:
    heading = f"What each operator uses at {one_line(share)}"
    if isinstance(used, str):
        return Block(heading, (), (), empty=one_line(used))
    return block_of(used.table, heading)


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
