"""The result of a tuning, which shows itself as tables."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fractune.features.compete.results import CompeteResult, checked_json, checks_of, contest_events
from fractune.features.goal import Goal, goal_json, step_times
from fractune.features.join import JoinedBundle, bundle_times
from fractune.features.matrix.cross_table import model_table
from fractune.features.matrix.matrix import Matrix
from fractune.features.tune.answer import Answer, Row, answer_json, answer_of
from fractune.features.tune.bundle import BundleFile
from fractune.features.tune.table import latency_table, result_json
from fractune.features.tune.times_table import time_table
from fractune.server.job_status import JobStatus, ShareResult
from fractune.text.rendering import Column, Table
from fractune.text.text import factor_text, marked_time, ratio_text, untuned_notes
from fractune_core.analysis.model_times import RuntimeTime
from fractune_core.errors import one_line, some_of
from fractune_core.files.buckets import shape_text
from fractune_core.files.compared import Checked
from fractune_core.files.staged import Stages


@dataclass(frozen=True)
class TuneResult:
    """A finished job and the bundle that it made."""

    job: JobStatus
    bundle: BundleFile
    measurers: Mapping[str, int] = field(default_factory=dict)
    """number of measurers of each share, by share; empty if a server did the work"""
    goal: Goal | None = None
    """the goal and its progress, with `until_beats`; `job` is then the last step's"""
    jobs: tuple[JobStatus, ...] = ()
    """of a tuning for several shapes: the job of each, the largest first, which is `job`; of a model in parts: the job
    of each part"""
    joined: JoinedBundle | None = None
    """of a tuning for several shapes: its buckets, and whether they may be padded"""
    stages: Stages | None = None
    """of a model in parts: what runs in which order"""
    competed: CompeteResult | None = None
    """other runtimes beside the bundle; None if none was timed, or if the goal's last step did that"""
    not_compared: str = ""
    """why ONNX Runtime was not timed beside the bundle; empty if it was, or if the caller did not want that"""

    def __repr__(self) -> str:
        times = ", ".join(f"{each.share} {_time_text(each)}" for each in self.shares)
        return f"TuneResult({one_line(self.job.model_name)}: {times}; bundle {self.bundle.path})"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()

    def to_pandas(self) -> Any:
        """The table, a row for each share, as a `pandas.DataFrame`. Raises FractuneError without pandas."""
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """The table, a row for each share, as a `polars.DataFrame`. Raises FractuneError without Polars."""
        return self.table.to_polars()

    @property
    def skipped_shares(self) -> Mapping[str, str]:
        """The shares that could not be verified, each with the cause; the others were tuned."""
        return self.job.spec.skipped_shares

    @property
    def shares(self) -> tuple[ShareResult, ...]:
        """Latency untuned and tuned, in seconds, one for each share."""
        return self.job.results

    @cached_property
    def answer(self) -> Answer:
        """The bundle beside ONNX Runtime, the share to use, and whether more trials would pay. Raises BadBundle."""
        times = self._times
        if self.stages is not None:  # no job timed the whole model
            shares = dict.fromkeys(each.share for each in times)
            rows = [Row(share, times=tuple(each for each in times if each.share == share)) for share in shares]
            return Answer(self.job, tuple(rows), self.jobs, self.not_compared)
        if self.joined is None:
            return answer_of(self.job, times, self.not_compared)
        rows = [
            Row(
                each.share,
                text,
                job,
                tuple(time for time in times if (time.share, shape_text(time.inputs)) == (each.share, text)),
            )
            for job, shape in zip(reversed(self.jobs), self.joined.buckets, strict=True)
            for each in job.results
            for text in (shape_text(shape),)
        ]
        return Answer(self.job, tuple(rows), self.jobs, self.not_compared)

    @property
    def _times(self) -> list[RuntimeTime]:
        if self.competed is not None:
            return self.competed.measured()
        return [] if self.goal is None or not self.goal.steps else step_times(self.goal, self.job.spec.model, {})

    @property
    def table(self) -> Table:
        """The bundle and other runtimes at each share, and what serves there."""
        return self.answer.table

    @property
    def latency(self) -> Table:
        """Latency at each share with and without tuning, as the job measured it."""
        return latency_table(self.job)

    @property
    def checked(self) -> list[Checked]:
        """What was compared of the bundle's outputs, of a joined bundle for each member. Raises BadBundle."""
        return checks_of(self.bundle.path)

    @property
    def operators(self) -> Table:
        """The distribution of the model's time: every operator, the heaviest first, with GFLOP/s and part of the
        roof.
        """
        return time_table(self.job)

    @property
    def matrix(self) -> Matrix:
        """The schedules tuned for each share at every other share; for a model in parts, those of its first part."""
        return Matrix((model_table(self.job),))


def _time_text(each: ShareResult) -> str:
    return f"{marked_time(each.tuned_s, at_most=each.is_disturbed)} ({ratio_text(each.untuned_s, each.tuned_s)})"


def result_events(result: TuneResult) -> Iterator[dict[str, Any]]:
    """The events of a finished tuning as plain data: what was compared, and the result last."""
    path = result.bundle.path
    if result.competed is not None:
        yield from contest_events(result.competed)
    found = {"checked": checked_json(path), **answer_json(result.answer)}
    if result.joined is None and result.stages is None:
        goal = {} if result.goal is None else {"goal": goal_json(result.goal)}
        yield {**result_json(result.job, str(path)), **found, **goal}
        return
    for job in result.jobs:
        yield result_json(job, str(path))
    if result.joined is not None:
        joined = {"buckets": list(result.joined.buckets), "padding": result.joined.padding.to_json()}
        yield {"event": "joined", "bundle": str(path), **joined, **found}
    elif result.stages is not None:
        yield {"event": "parts", "bundle": str(path), **result.stages.to_json(), **found}


def shapes_table(result: TuneResult) -> Table:
    """A row for each shape and share, the smallest shape first: the whole model without and with tuning. The last
    column is about the smallest inputs that run in this shape: how many times as long padding makes them.
    """
    columns = (
        Column("shape", wraps_at=24),
        Column("share"),
        *(Column(name, numbers=True) for name in ("untuned TVM", "tuned", "gain", "padding costs up to")),
    )
    notes = untuned_notes(each for job in result.jobs for each in job.results)
    return Table(title=f"{result.job.model_name} by shape", columns=columns, cells=tuple(_rows(result)), notes=notes)


def _rows(result: TuneResult) -> Iterator[tuple[str, ...]]:
    found = bundle_times(result.bundle.path)
    times = () if found is None else found.times
    padding = {(shape_text(each.inputs), each.share): each.most_padding for each in times}
    buckets = () if result.joined is None else result.joined.buckets
    for job, bucket in zip(reversed(result.jobs), buckets, strict=True):
        for each in job.results:
            factor = padding.get((shape_text(bucket), each.share))
            yield shape_text(bucket), each.share, *_times(each), "-" if factor is None else factor_text(factor)


def _times(each: ShareResult) -> tuple[str, str, str]:
    untuned = marked_time(each.untuned_s, at_most=each.is_untuned_at_most)
    tuned = marked_time(each.tuned_s, at_most=each.is_disturbed)
    return untuned, tuned, ratio_text(each.untuned_s, each.tuned_s)


_RUNTIME = "ONNX Runtime"


def parts_table(result: TuneResult, stages: Stages) -> Table:
    """A row for each part, and for each share of an own part, in the order of running."""
    columns = (
        Column("part", numbers=True),
        Column("run by", wraps_at=32),
        Column("share"),
        *(Column(name, numbers=True) for name in ("untuned TVM", "tuned", "gain")),
    )
    title = f"{result.bundle.path.name} in parts"
    notes = untuned_notes(each for job in result.jobs for each in job.results)
    return Table(title=title, columns=columns, cells=tuple(_part_rows(result, stages)), notes=notes)


def _part_rows(result: TuneResult, stages: Stages) -> Iterator[tuple[str, ...]]:
    for number, step in enumerate(stages.steps, 1):
        if step.member is None:
            names = [f"{count} {name}" if count > 1 else name for name, count in step.operators.items()]
            yield str(number), f"{_RUNTIME}: {some_of(names)}", "all", "-", "-", "-"
            continue
        for each in result.jobs[step.member].results:
            yield str(number), "own code", each.share, *_times(each)
