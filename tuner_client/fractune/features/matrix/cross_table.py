"""The table tuned-at x run-at of a model or an operator: every variant at every share, with its loss there."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from fractune.server.job_status import JobStatus, OperatorRecords, ShareResult
from fractune.text.text import disturbed_notes, factor_text, marked_time
from fractune_core.analysis.at_load import AtLoad
from fractune_core.analysis.roofline import is_launch_bound
from fractune_core.analysis.slowdown_ci import LEVEL, Slowdown, ratio, slowdown
from fractune_core.cpu_limits import threads_text
from fractune_core.errors import one_line
from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT, explained_variant
from fractune_core.served import LOAD_TEXT
from fractune_core.shares import Share, units_text

HEADING = f"p50 / p99 at {LOAD_TEXT}"


def latency_cell(found: AtLoad | None, *, at_most: bool = False) -> str:
    """`3.14 ms / 9.10 ms`; `3.14 ms / -` with too few requests for a p99, `-` if not measured. They are `at_most`
    that if other programs disturbed them.
    """
    return "-" if found is None else " / ".join(marked_time(s, at_most=at_most) for s in (found.p50_s, found.p99_s))


def at_load_json(result: ShareResult) -> dict[str, Any]:
    """All that were timed, and the best by goal: times in seconds, None = not known."""
    return {
        "at_load": [{**each.served.to_json(), **each.to_json()} for each in result.at_load],
        "served": {goal: best.served.to_json() for goal, best in result.best.items()},
        "others_cores": result.others_cores,
        "disturbed": result.is_disturbed,
    }


def at_load_sentences(results: Iterable[ShareResult]) -> Iterator[str]:
    """A sentence for each share: the best variant for requests first."""
    for each in results:
        best = each.at_load_best
        if best is not None:
            ordered = (best, *(other for other in each.at_load if other != best))
            cells = (f"{_name(one)} {latency_cell(one, at_most=each.is_disturbed)}" for one in ordered)
            yield f"at {each.share}, {HEADING}: {', '.join(cells)}"


def load_notes(results: Iterable[ShareResult]) -> Iterator[str]:
    """A note on disturbed times, and one for each share where another variant than that for the share is the best."""
    found = list(results)
    yield from disturbed_notes(found)
    for each in found:
        if each.best and each.at_load_best != each.at_load[0]:
            best, own = each.best["latency"], each.at_load[0]
            yield (
                f"note: at {each.share} 'fractune.load' takes {_name(best)}: {HEADING} {latency_cell(best)}, with "
                f"{_name(own)} {latency_cell(own)}"
            )


def _name(found: AtLoad) -> str:
    return f"{explained_variant(found.variant)} with {threads_text(found.threads)}"


_UNDECIDED = 0.5
"""a tie whose interval reaches further than this decides nothing"""


@dataclass(frozen=True)
class Cell:
    """One variant at one share."""

    run_secs: Sequence[float]
    """all repeats, in seconds"""
    timing: str
    """cells with the same timing were timed interleaved"""
    kept: float = 1.0
    """the part of the share's cores that other programs left; below 1 only if they disturbed the times"""

    @property
    def median_s(self) -> float:
        return statistics.median(self.run_secs)


@dataclass(frozen=True)
class CrossTable:
    """Cells by variant (`untuned`, `robust` or the share it was tuned at), then by the share they ran at.

    Unmeasured cells are absent. All statements of a table hold together with 95 %. Each interval leaves out 5 % divided
    by the number of comparisons, which is the number of pairs of cells in a column (Bonferroni). All pairs count,
    because the repeats that compare with the fastest of a column also select it.
    """

    name: str
    weight: int
    """how often the operator occurs in its model; 1 for a model"""
    shares: tuple[str, ...]
    cells: Mapping[str, Mapping[str, Cell]]
    results: tuple[ShareResult, ...] = ()
    """of the model, with latencies at 30 % load; empty for an operator"""
    launches_s: Mapping[str, float] = field(default_factory=dict)
    """seconds of the launches of its kernels by share, where they are known: on a GPU"""
    ranges: tuple[str, ...] = ()
    """that one variant is to serve; of an operator none, since a variant is of a model"""

    def __repr__(self) -> str:
        return f"CrossTable({one_line(self.name)}: {', '.join(self.shares)})"

    @cached_property
    def level(self) -> float:
        """Coverage of each interval."""
        columns = Counter(share for row in self.cells.values() for share in row)
        return 1.0 - (1.0 - LEVEL) / max(1, sum(math.comb(variants, 2) for variants in columns.values()))

    def fastest(self, share: str) -> str | None:
        """The variant with the smallest median at a share that no other beats beyond the noise.

        Interleaved cells are compared in pairs, which may contradict the medians.
        """
        held = {variant: row[share] for variant, row in self.cells.items() if share in row}
        order = sorted(held, key=lambda variant: held[variant].median_s)
        unbeaten = (each for each in order if not any(self._is_beaten(held[each], other) for other in held.values()))
        return next(unbeaten, order[0] if order else None)

    def slowdown(self, variant: str, share: str) -> Slowdown | None:
        """Slow-down against the fastest at this share; None if it was not measured."""
        fastest = self.fastest(share)
        return None if fastest is None else self.loss_against(fastest, variant, share)

    def loss_against(self, other: str, variant: str, share: str) -> Slowdown | None:
        """Loss of `variant` at `share` against the variant `other`."""
        mine, theirs = self.cells.get(variant, {}).get(share), self.cells.get(other, {}).get(share)
        if mine is None or theirs is None:
            return None
        return self._loss(mine, theirs)

    def is_launch_bound(self, variant: str, share: str) -> bool | None:
        """Whether a cell's time is hardly longer than the launches; None if that is not known."""
        cell = self.cells.get(variant, {}).get(share)
        return None if cell is None else is_launch_bound(cell.median_s, self.launches_s.get(share))

    def all(self) -> Iterator[tuple[str, str, Cell, Slowdown]]:
        """Every measured cell: variant, share, cell, loss against the fastest there."""
        for variant, row in self.cells.items():
            for share, cell in row.items():
                lost = self.slowdown(variant, share)
                if lost is not None:
                    yield variant, share, cell, lost

    def robust(self, within: str = "") -> tuple[str, str, Slowdown] | None:
        """The tuned variant with the smallest loss at its worst share: variant, that share, that loss. `within` is a
        range whose shares count alone.

        Among variants that lose nothing beyond the noise, it is the one that was made for them, if there is one.
        """
        shares = self.shares_of(within)
        worst = {
            variant: max(
                ((share, lost) for share in shares if (lost := self.slowdown(variant, share)) is not None),
                key=lambda found: found[1].median,
            )
            for variant, row in self.cells.items()
            if variant != UNTUNED_VARIANT and all(share in row for share in shares)
        }
        if not worst:
            return None
        variant, made = min(worst, key=lambda name: (worst[name][1].median, name)), within or ROBUST_VARIANT
        if made in worst and all(self.is_lossless(each, within) for each in (variant, made)):
            variant = made
        return variant, *worst[variant]

    def shares_of(self, within: str) -> tuple[str, ...]:
        """The shares of a range; all without one."""
        return tuple(share for share in self.shares if not within or Share.parse(within).spans(share))

    def is_lossless(self, variant: str, within: str = "") -> bool:
        """Whether `variant` loses nothing beyond the noise at any of these shares where it was measured."""
        losses = (self.slowdown(variant, share) for share in self.shares_of(within))
        return all(lost is None or lost.low <= 0.0 for lost in losses)

    def _loss(self, cell: Cell, other: Cell) -> Slowdown:
        found = slowdown(cell.run_secs, other.run_secs, interleaved=cell.timing == other.timing, level=self.level)
        return found.widened(cell.kept, other.kept)

    def _is_beaten(self, cell: Cell, other: Cell) -> bool:
        """Whether `other` beats `cell` beyond the noise. The interval is computed only if the medians differ that
        way.
        """
        is_slower = ratio(cell.run_secs, other.run_secs, interleaved=cell.timing == other.timing) > 1.0
        return is_slower and not self._loss(cell, other).is_tie


def model_table(job: JobStatus) -> CrossTable:
    """The table of a finished job's whole model, whose variants were timed interleaved at each share."""
    found: dict[str, dict[str, Cell]] = {}
    for each in job.results:
        for variant, run_secs in each.run_secs.items():
            found.setdefault(variant, {})[each.share] = Cell(run_secs, job.name, each.kept)
    order = [UNTUNED_VARIANT, *job.shares, *job.spec.ranges, ROBUST_VARIANT]
    cells = {variant: found[variant] for variant in order if variant in found}
    return CrossTable(job.model_name, 1, job.shares, cells, job.results, job.launches_s, job.spec.ranges)


def operator_table(
    published: OperatorRecords, shares: Sequence[str], launch_s: Mapping[str, float] = MappingProxyType({})
) -> CrossTable:
    """The table of one operator, from published measurements; those of one job at one share were interleaved.

    `launch_s`: seconds of a kernel's launch by share, where they are known.
    """
    found: dict[str, dict[str, Cell]] = {}
    for tuned_at, run_at, record in published.cells:
        found.setdefault(tuned_at, {})[run_at] = Cell(record.reported_secs, record.job)
    order = [UNTUNED_VARIANT, *shares]
    cells = {variant: found[variant] for variant in order if variant in found}
    return CrossTable(published.operator.name, published.operator.weight, tuple(shares), cells, (), launch_s)


def sentences(table: CrossTable) -> list[str]:
    """Sentences of the table: each share's schedule at every other share, against the schedule tuned there."""
    lines = [
        _sentence(variant, share, lost)
        for share in table.shares
        for variant in table.shares
        if variant != share and (lost := table.loss_against(share, variant, share)) is not None
    ]
    is_all = any(table.shares_of(each) == table.shares for each in table.ranges)
    wanted = table.ranges if is_all else (*table.ranges, "")
    for_all = [one_for_all(table, each) for each in wanted] if len(table.shares) > 1 else []
    return [*lines, *filter(None, for_all), *at_load_sentences(table.results)]


def one_for_all(table: CrossTable, within: str) -> str:
    """The variant that serves all shares of a range, or of the table; empty if none was measured at all of them."""
    robust = table.robust(within)
    if robust is None:
        return ""
    variant, share, lost = robust
    made = {ROBUST_VARIANT: "the schedules made for all ('robust')", within: f"the schedules made for {within}"}
    most = f"at most {with_interval(lost)} (on {share_text(share)})"
    if table.is_lossless(variant, within):
        most = "nothing beyond the noise at any of these shares"
        if lost.high > 0.0:
            most += f" ({signed(lost)} on {share_text(share)})"
    named = made.get(variant) or f"the schedules tuned on {share_text(variant)}"
    return f"one variant for all of {within or 'these shares'}: {named} lose {most}"


def _sentence(variant: str, share: str, lost: Slowdown) -> str:
    served, tuned = f"served on {share_text(share)}", f"the schedule tuned on {share_text(variant)}"
    if lost.is_tie and (math.isnan(lost.margin) or lost.margin > _UNDECIDED):
        return f"{served}, the times vary too much to tell whether {tuned} is as fast ({signed(lost)}); repeat it"
    if lost.is_tie:
        return f"{served}, {tuned} does as well as the one tuned there, within the noise ({signed(lost)})"
    if lost.median > 0:
        return f"{served}, {tuned} loses {with_interval(lost)}"
    gain = with_interval(Slowdown(-lost.median, -lost.high, -lost.low))
    return f"{served}, {tuned} is {gain} faster than the one tuned there: that search had less luck"


def verdict(table: CrossTable, variant: str, share: str, lost: Slowdown) -> str:
    """`fastest` of its column, `tie` within the noise, else the loss; `238x, one timing` if its interval is not known.

    Several are the fastest if they are one schedule: then their cells have the same measurement.
    """
    fastest = table.fastest(share)
    if fastest is not None and table.cells[variant][share] == table.cells[fastest][share]:
        return "fastest"
    if math.isnan(lost.margin):  # too few timings, such as of an untuned model that takes seconds
        timings = min(len(table.cells[each][share].run_secs) for each in (variant, fastest or variant))
        return f"{factor_text(1 + lost.median)}, {'one timing' if timings == 1 else f'{timings} timings'}"
    return "tie" if lost.is_tie else signed(lost)


def share_text(share: str) -> str:
    """`1 core`, `2 cores`; shares of other mechanisms are unchanged."""
    parsed = Share.parse(share)
    return units_text(parsed.cores, "core") if parsed.mechanism == "cpu" else share


def signed(lost: Slowdown) -> str:
    """`+1 % ± 3 %`, `+546 % (143 % .. 1610 %)`"""
    return f"{'+' if lost.median >= 0 else ''}{with_interval(lost)}"


def with_interval(lost: Slowdown) -> str:
    """`14 % ± 3 %`; `546 % (143 % .. 1610 %)` if ± would reach zero but the interval does not; `14 %, from too few
    timings for an interval`.
    """
    if math.isnan(lost.margin):
        return f"{percent(lost.median)}, from too few timings for an interval"
    if not lost.is_tie and abs(lost.median) <= lost.margin:
        return f"{percent(lost.median)} ({percent(lost.low)} .. {percent(lost.high)})"
    return f"{percent(lost.median)} ± {percent(lost.margin)}"


def percent(fraction: float) -> str:
    """`14 %`, `0.4 %`"""
    return f"{fraction * 100:.{1 if abs(fraction) < 0.0995 else 0}f} %"
