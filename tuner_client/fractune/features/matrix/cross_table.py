"""The table tuned-at x run-at of a model or an operator: every variant at every share, with its loss there."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fractune.server.job_status import JobStatus, OperatorRecords, ShareResult
from fractune.text.rendering import Column, Table, save_figure
from fractune.text.text import disturbed_notes, factor_text, launch_notes, marked_time
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


_DARKEST = 0.5
"""loss with the darkest colour"""


def draw_table(table: CrossTable, path: Path) -> None:
    """Draw a heat map: a row for each variant, a column for each share it ran at.

    The colour of a cell is its loss against the fastest variant in its column. Its text has the time and that loss; a
    difference within the noise is a tie. Raises StateUnusable.
    """
    from matplotlib.figure import Figure

    variants, shares = list(table.cells), list(table.shares)
    losses = {(v, s): lost for v in variants for s in shares if (lost := table.slowdown(v, s)) is not None}
    shades = [[_shade(losses.get((variant, share))) for share in shares] for variant in variants]
    figure = Figure(figsize=(3.0 + 1.9 * len(shares), 1.9 + 0.8 * len(variants)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shades, cmap="Blues", vmin=0, vmax=_DARKEST, aspect="auto")
    axes.set_xticks(range(len(shares)), [f"run at\n{share}" for share in shares])
    axes.set_yticks(range(len(variants)), [_row_label(variant) for variant in variants])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for row, variant in enumerate(variants):
        for column, share in enumerate(shares):
            lost = losses.get((variant, share))
            axes.text(column, row, _cell_text(table, variant, share, lost), **_cell_style(_shade(lost)))
    bar = figure.colorbar(image, ax=axes, ticks=[0, _DARKEST / 2, _DARKEST])
    bar.ax.set_yticklabels(["as the fastest", f"+{_DARKEST / 2 * 100:.0f} %", f"+{_DARKEST * 100:.0f} % or more"])
    bar.set_label("time against the fastest of the column")
    axes.set_title(f"{table.name}: latency by the share\nit was tuned at and the share it runs at", pad=14)
    save_figure(figure, path)


def _cell_text(table: CrossTable, variant: str, share: str, lost: Slowdown | None) -> str:
    if lost is None:
        return "not measured"
    cell = table.cells[variant][share]
    return f"{marked_time(cell.median_s, at_most=cell.kept < 1)}\n{verdict(table, variant, share, lost)}"


def _row_label(variant: str) -> str:
    return variant if variant in (UNTUNED_VARIANT, ROBUST_VARIANT) else f"tuned at {variant}"


def _shade(lost: Slowdown | None) -> float:
    """The loss for the colour: 0 for a tie, NaN if not measured."""
    if lost is None:
        return float("nan")
    return 0.0 if lost.is_tie else max(lost.median, 0.0)


def _cell_style(shade: float) -> dict[str, Any]:
    """Centred; light on dark cells."""
    return {"ha": "center", "va": "center", "color": "white" if shade > 0.6 * _DARKEST else "black"}


COLUMNS = ("tuned_at", "run_at", "median_s", "loss", "loss_low", "loss_high", "tie", "launch_bound", "run_secs")


def cross_text(table: CrossTable) -> Table:
    """A row for each variant, a column for each share; `rows` has a row with COLUMNS for each cell."""
    title = table.name if table.weight == 1 else f"{table.name} (x{table.weight})"
    return Table(
        title=f"{title}: tuned at x run at",
        columns=(Column("tuned at"), *(Column(f"run at {share}", numbers=True, wraps_at=13) for share in table.shares)),
        cells=tuple(
            (variant, *(cell_text(table, variant, share) for share in table.shares)) for variant in table.cells
        ),
        rows=tuple(dict(zip(COLUMNS, row, strict=True)) for row in rows(table)),
        notes=(
            *launch_notes(table.is_launch_bound(variant, share) for variant, share, *_ in table.all()),
            *disturbed_notes(table.results),
            *sentences(table),
        ),
    )


def cell_text(table: CrossTable, variant: str, share: str) -> str:
    """`25.4 ms +14 % ± 3 %`, `22.2 ms fastest`, `22.3 ms tie`; `22.3 us * tie` near the launch floor; `-` if not
    measured.
    """
    cell, lost = table.cells.get(variant, {}).get(share), table.slowdown(variant, share)
    if cell is None or lost is None:
        return "-"
    launch_bound = table.is_launch_bound(variant, share)
    time = marked_time(cell.median_s, launch_bound=launch_bound, at_most=cell.kept < 1)
    return f"{time}  {verdict(table, variant, share, lost)}"


def table_json(table: CrossTable) -> dict[str, Any]:
    """Times in seconds, losses as fractions."""
    return {
        "subject": table.name,
        "weight": table.weight,
        "cells": [dict(zip(COLUMNS, row, strict=True)) for row in rows(table)],
        "robust": _robust_json(table),
        "ranges": {each: _robust_json(table, each) for each in table.ranges},
        "launches_s": dict(table.launches_s),
        "sentences": sentences(table),
        "at_load": {each.share: at_load_json(each) for each in table.results},
    }


def _robust_json(table: CrossTable, within: str = "") -> dict[str, Any] | None:
    found = table.robust(within)
    return None if found is None else {"variant": found[0], "worst_at": found[1], "loss": found[2].median}


def rows(table: CrossTable) -> list[list[Any]]:
    return [
        [
            *(
                variant,
                share,
                cell.median_s,
                lost.median,
                *(None if math.isnan(lost.low) else end for end in (lost.low, lost.high)),
                lost.is_tie,
            ),
            *(table.is_launch_bound(variant, share), list(cell.run_secs)),
        ]
        for variant, share, cell, lost in table.all()
    ]
