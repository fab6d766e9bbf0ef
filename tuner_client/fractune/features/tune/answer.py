"""What a tuning found, in one line and one table: the bundle beside ONNX Runtime, the share to use, and whether more
trials would pay.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fractune.features.matrix.cross_table import HEADING, latency_cell, model_table, one_for_all
from fractune.features.tune.table import latency_notes, latency_row
from fractune.features.tune.times_table import operator_time
from fractune.server.job_status import JobStatus, ShareResult
from fractune.text import text
from fractune.text.rendering import Column, Table
from fractune.text.text import counts_text, disturbed_notes, estimate_text, marked_time, percent_text, span_text
from fractune_core.analysis.model_times import RuntimeTime
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import one_line
from fractune_core.files.compared import ONNX_RUNTIME, OURS
from fractune_core.served import is_disturbed

MOST_ROWS = 10
_MOST_RATIOS = 3
"""shares in the first line"""
_WORTH = 0.01
"""of the operators' time: what the last trials must have gained, so that more pay"""
_CLOSE = 0.1
"""operators within this part of what the processor allows have almost nothing to gain"""
_KNOWN = 0.8
"""of the operators' time: where less of it has a known limit, nothing is concluded"""
_WELL_USED = 0.75
"""of a speed-up in proportion to the cores: with less, the smaller share serves more for its cores"""
_NAMES = {ONNX_RUNTIME: "ONNX Runtime", "openvino": "OpenVINO"}


def runtime_name(name: str) -> str:
    """As its makers write it."""
    return _NAMES.get(name, name)


@dataclass(frozen=True)
class Row:
    """The bundle at one share, for inputs of one shape."""

    share: str
    shape: str = ""
    """of a bundle for several shapes"""
    job: JobStatus | None = None
    """that tuned it; None for a model in parts, which several jobs tuned"""
    times: tuple[RuntimeTime, ...] = ()
    """of other runtimes, timed beside the bundle"""

    @property
    def result(self) -> ShareResult | None:
        """The whole model, as the job timed it."""
        return next((each for each in self.job.results if each.share == self.share), None) if self.job else None

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs made `bundle_s` too long."""
        if self.times:
            return is_disturbed(self.times[0].others_cores)
        return self.result is not None and self.result.is_disturbed

    @property
    def bundle_s(self) -> float:
        """One inference by the bundle's own code, in a loop."""
        if self.times:
            return self.times[0].bundle_loop_s
        return math.nan if self.result is None else self.result.tuned_s

    @property
    def fastest_s(self) -> float:
        """The same by whatever is the fastest there."""
        return min([self.bundle_s, *(each.loop_s for each in self.times if each.loop_ratio.low > 1)])

    def fastest(self, goal: Literal["loop", "paced"]) -> str:
        """A runtime that is faster beyond the noise, the fastest of several; else the bundle's own code."""
        ratios = {each.runtime: each.loop_ratio if goal == "loop" else each.paced_ratio for each in self.times}
        faster = {name: ratio.median for name, ratio in ratios.items() if ratio.low > 1}
        return max(faster, key=lambda name: faster[name]) if faster else OURS

    def ratio(self, runtime: str = ONNX_RUNTIME) -> Estimate | None:
        """The bundle's time over the runtime's, in a loop; None if it was not timed."""
        return next((each.loop_ratio for each in self.times if each.runtime == runtime), None)


@dataclass(frozen=True)
class Answer:
    """What a tuning found."""

    job: JobStatus
    """the job of the largest shape"""
    rows: tuple[Row, ...]
    jobs: tuple[JobStatus, ...] = ()
    """all jobs of several shapes or parts; empty for a single one"""
    not_compared: str = ""
    """why ONNX Runtime was not timed beside the bundle; empty if it was, or if the caller did not want that"""

    @property
    def line(self) -> str:
        """The ratio to ONNX Runtime, the share to use, and whether more trials would pay."""
        return "; ".join(filter(None, [self._ratios(), self._share(), search_text(self.job)]))

    @property
    def lines(self) -> list[str]:
        """`line`, what one variant loses within each range, and the reason if nothing was compared."""
        ranges = [one_for_all(model_table(self.job), each) for each in self.job.spec.ranges]
        why = [f"not compared with ONNX Runtime: {self.not_compared}"] if self.not_compared else []
        return [self.line, *filter(None, ranges), *why]

    @property
    def _largest(self) -> tuple[Row, ...]:
        return tuple(each for each in self.rows if each.shape == self.rows[-1].shape)

    def _ratios(self) -> str:
        timed = [(each, ratio) for each in self._largest if (ratio := each.ratio()) is not None]
        if not timed:
            shown = self._largest[:_MOST_RATIOS]
            times = (marked_time(each.fastest_s, at_most=each.is_disturbed) for each in shown)
            return ", ".join(f"{time} at {each.share}" for time, each in zip(times, shown, strict=True))
        shape = f" ({timed[0][0].shape})" if timed[0][0].shape else ""
        of = (" of ONNX Runtime's time", *[""] * _MOST_RATIOS)
        ratios = [_ratio_text(*each, of[at]) for at, each in enumerate(timed[:_MOST_RATIOS])]
        more = [f"{len(timed) - _MOST_RATIOS} more in the table"] if len(timed) > _MOST_RATIOS else []
        return ", ".join([*ratios, *more]) + shape

    def _share(self) -> str:
        """Which of several shares of whole units gives most for its units; empty where that is not known."""
        found = [(each, each.result) for each in self._largest]
        sized = sorted(
            ((result.granted.units, row) for row, result in found if result and result.granted.kind.measures_kernels),
            key=lambda each: each[0],
        )
        if len({units for units, _ in sized}) < 2 or any(row.is_disturbed for _, row in sized):
            return ""
        best = 0
        for at in range(1, len(sized)):
            (few, slow), (many, fast) = sized[best], sized[at]
            best = at if slow.fastest_s / fast.fastest_s >= _WELL_USED * many / few else best
        (_, used), (_, other) = sized[best], sized[best + 1] if best + 1 < len(sized) else sized[0]
        gain = used.fastest_s / other.fastest_s
        if best + 1 < len(sized):
            return f"use {used.share}: {other.share} is {'only ' if gain >= 1 else ''}{gain:.1f}x as fast"
        return f"use {used.share}: it is {1 / gain:.1f}x as fast as {other.share}"

    @property
    def spent(self) -> str:
        """`100 of 100 new trials (260 requested, 160 in the log), failed: none; took 1 min 20 s: tuning 60.0 s, ...`"""
        jobs = self.jobs or (self.job,)
        failed: Counter[str] = Counter()
        for each in jobs:
            failed.update(each.progress.failures)
        new = sum(each.progress.candidates_had for each in jobs)
        trials = self.job.trials_text if len(jobs) == 1 else f"{new} new trials in {len(jobs)} jobs"
        wall_s, by_job = sum(each.wall_s for each in jobs), [each.progress.phases_s for each in jobs]
        phases = text.spent_text({name: sum(each.get(name, 0.0) for each in by_job) for name in by_job[0]})
        took = f"{span_text(wall_s)}{phases and f': {phases}'}"
        return f"{trials}, failed: {counts_text(dict(failed))}; took {took}"

    @property
    def table(self) -> Table:
        """A row for each shape and share: the bundle and the other runtimes beside it, and the fastest. `rows` has the
        times without tuning too.
        """
        shaped = any(each.shape for each in self.rows)
        runtimes = list(dict.fromkeys(time.runtime for each in self.rows for time in each.times))
        columns = (
            *([Column("inputs", wraps_at=24)] if shaped else []),
            *(Column("share"), Column("this bundle", numbers=True)),
            *(column for name in runtimes for column in _runtime_columns(name)),
            *(Column(HEADING, numbers=True, dispensable=2), Column("fastest", wraps_at=12)),
        )
        return Table(
            title=f"{self.job.model_name}: one inference",
            columns=columns,
            cells=tuple((*([each.shape] if shaped else []), *_cells(each, runtimes)) for each in self.rows),
            rows=tuple(map(_data, self.rows)),
            notes=tuple(dict.fromkeys(self._notes())),
        )

    def _notes(self) -> Iterator[str]:
        """Of disturbed times only the ones that the table is about: those beside other runtimes, else the jobs'."""
        beside = disturbed_notes(each.times[0] for each in self.rows if each.times)
        yield from beside
        for job in {each.job.name: each.job for each in self.rows if each.job is not None}.values():
            of_job = disturbed_notes(job.results) if beside else ()
            yield from (note for note in latency_notes(job) if note not in of_job)


def answer_of(job: JobStatus, times: Sequence[RuntimeTime] = (), not_compared: str = "") -> Answer:
    """Of a job for one shape; `times` are of other runtimes at its shares."""
    rows = (Row(each.share, "", job, tuple(time for time in times if time.share == each.share)) for each in job.results)
    return Answer(job, tuple(rows), not_compared=not_compared)


def answer_json(answer: Answer) -> dict[str, Any]:
    """`answer` is the line for people; `gained` is what the last trials saved of the operators' time."""
    gained = answer.job.pace.gained(answer.job.progress.candidates_had)
    return {
        "answer": answer.line,
        "not_compared": answer.not_compared or None,
        "gained": None if gained is None else dict(zip(("last_trials", "part"), gained, strict=True)),
    }


def search_text(job: JobStatus) -> str:
    """Whether more trials would pay, by the last ones of this job and by the limits of the processor. Empty if the job
    was not followed from its search on.
    """
    left, gained = left_to_gain(job), job.pace.gained(job.progress.candidates_had)
    if left is not None and left < _CLOSE:
        return f"more trials are not worth it: the operators are within {left * 100:.0f} % of what the processor allows"
    if not job.progress.candidates_had:
        return "whether more trials would pay is not known: none was new"
    if gained is None:
        return "whether more trials would pay is not known: too few were new" if job.pace.sums else ""
    last, part = gained
    verdict = "more trials may pay" if part >= _WORTH else "more trials are not worth it"
    return f"{verdict}: the last {last} gained {percent_text(part)}"


def left_to_gain(job: JobStatus) -> float | None:
    """The part of the operators' time above the limits of the processor, at the share with most of it. None if too few
    of these limits are known.
    """
    known = (_above_roof(job, each) for each in job.tuned_results)
    return max((each for each in known if each is not None), default=None)


def _above_roof(job: JobStatus, result: ShareResult) -> float | None:
    timed = [operator_time(each, result, job.roofs.get(result.share)) for each in job.operators if each.selected]
    found = [each for each in timed if each is not None]
    known = [(each.secs, each.roof_part) for each in found if each.roof_part is not None]
    known_s, all_s = sum(secs for secs, _ in known), sum(each.secs for each in found)
    if not known_s or known_s < _KNOWN * all_s:
        return None
    return 1 - sum(secs * min(part, 1.0) for secs, part in known) / known_s


def _ratio_text(row: Row, ratio: Estimate, of: str) -> str:
    slower = f" ({runtime_name(ONNX_RUNTIME)} is faster there)" if row.fastest("loop") == ONNX_RUNTIME else ""
    return f"{estimate_text(ratio)}{of} at {row.share}{slower}"


def _runtime_columns(name: str) -> tuple[Column, ...]:
    return (
        Column(runtime_name(name), numbers=True),
        Column("bundle over it", numbers=True),
        Column("paced", numbers=True, dispensable=1),
    )


def _cells(row: Row, runtimes: Sequence[str]) -> Iterator[str]:
    result, times = row.result, {each.runtime: each for each in row.times}
    bound = None if result is None or row.job is None else latency_row(row.job, result)["launch_bound"]
    yield from (row.share, marked_time(row.bundle_s, launch_bound=bound, at_most=row.is_disturbed))
    for name in runtimes:
        timed = times.get(name)
        yield marked_time(timed.loop_s if timed else None, at_most=row.is_disturbed)
        yield from (estimate_text(each) for each in ((timed.loop_ratio, timed.paced_ratio) if timed else (None, None)))
    load = None if result is None else result.at_load_best
    yield latency_cell(load, at_most=result is not None and result.is_disturbed)
    loop, paced = row.fastest("loop"), row.fastest("paced")
    yield one_line(loop if loop == paced else f"{loop} in a loop, {paced} paced")


def _data(row: Row) -> dict[str, Any]:
    """Times in seconds; `compared` has an object for each other runtime."""
    found = {} if row.result is None or row.job is None else latency_row(row.job, row.result)
    return {
        "share": row.share,
        **found,
        "shape": row.shape,
        "bundle_s": row.bundle_s,
        "fastest_s": row.fastest_s,
        "fastest": row.fastest("loop"),
        "compared": [each.to_json() for each in row.times],
    }
