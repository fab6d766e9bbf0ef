"""The table tuned-at x run-at of a model or an operator: every variant at every share, and what it loses there."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fractune.server.job_status import JobStatus, OperatorRecords
from fractune_core.analysis.slowdown_ci import LEVEL, Slowdown, ratio, slowdown
from fractune_core.errors import one_line
from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT


@dataclass(frozen=True)
class Cell:
    """One variant at one share."""

    run_secs: Sequence[float]
    """all repeats, in seconds"""
    timing: str
    """cells of one timing were timed in turn"""

    @property
    def median_s(self) -> float:
        return statistics.median(self.run_secs)


@dataclass(frozen=True)
class CrossTable:
    """Cells by variant (`untuned`, `robust` or the share it was tuned at), then by the share they ran at. What was not
    measured is absent.

    All statements of a table hold together with 95 %. Each of its intervals leaves out 5 % divided by the number of
    comparisons, which is the number of pairs of cells in a column (Bonferroni). The fastest of a column is found by the
    same repeats that it is compared by, which is why all pairs count and not those with the fastest alone.
    """

    name: str
    weight: int
    """how often the operator occurs in its model; 1 for a model"""
    shares: tuple[str, ...]
    cells: Mapping[str, Mapping[str, Cell]]

    def __repr__(self) -> str:
        return f"CrossTable({one_line(self.name)}: {', '.join(self.shares)})"

    @cached_property
    def level(self) -> float:
        """How often each of the intervals has to cover."""
        columns = Counter(share for row in self.cells.values() for share in row)
        return 1.0 - (1.0 - LEVEL) / max(1, sum(math.comb(variants, 2) for variants in columns.values()))

    def fastest(self, share: str) -> str | None:
        """The variant with the smallest median at a share; not one that another beats beyond the noise.

        What was timed in turn is compared in pairs, which may say another thing than medians do.
        """
        held = {variant: row[share] for variant, row in self.cells.items() if share in row}
        order = sorted(held, key=lambda variant: held[variant].median_s)
        unbeaten = (each for each in order if not any(self._is_beaten(held[each], other) for other in held.values()))
        return next(unbeaten, order[0] if order else None)

    def slowdown(self, variant: str, share: str) -> Slowdown | None:
        """Against the fastest at this share; None where it was not measured."""
        fastest = self.fastest(share)
        return None if fastest is None else self.loss_against(fastest, variant, share)

    def loss_against(self, other: str, variant: str, share: str) -> Slowdown | None:
        """What `variant` loses at `share` against the variant `other`."""
        mine, theirs = self.cells.get(variant, {}).get(share), self.cells.get(other, {}).get(share)
        if mine is None or theirs is None:
            return None
        return self._loss(mine, theirs)

    def all(self) -> Iterator[tuple[str, str, Cell, Slowdown]]:
        """Every cell that was measured: variant, share, cell, loss against the fastest there."""
        for variant, row in self.cells.items():
            for share, cell in row.items():
                lost = self.slowdown(variant, share)
                if lost is not None:
                    yield variant, share, cell, lost

    def robust(self) -> tuple[str, str, Slowdown] | None:
        """The tuned variant with the smallest loss at its worst share: variant, that share, that loss."""
        worst = {
            variant: max(
                ((share, lost) for share in self.shares if (lost := self.slowdown(variant, share)) is not None),
                key=lambda found: found[1].median,
            )
            for variant, row in self.cells.items()
            if variant != UNTUNED_VARIANT and all(share in row for share in self.shares)
        }
        if not worst:
            return None
        variant = min(worst, key=lambda name: (worst[name][1].median, name))
        return variant, *worst[variant]

    def _loss(self, cell: Cell, other: Cell) -> Slowdown:
        return slowdown(cell.run_secs, other.run_secs, interleaved=cell.timing == other.timing, level=self.level)

    def _is_beaten(self, cell: Cell, other: Cell) -> bool:
        """Beyond the noise. The interval is worked out only where there is a difference to judge."""
        is_slower = ratio(cell.run_secs, other.run_secs, interleaved=cell.timing == other.timing) > 1.0
        return is_slower and not self._loss(cell, other).is_tie


def model_table(job: JobStatus) -> CrossTable:
    """Of a finished job: the whole model, timed at each share in turn with its other variants."""
    found: dict[str, dict[str, Cell]] = {}
    for each in job.results:
        for variant, run_secs in each.run_secs.items():
            found.setdefault(variant, {})[each.share] = Cell(run_secs, job.name)
    order = [UNTUNED_VARIANT, *job.shares, ROBUST_VARIANT]
    cells = {variant: found[variant] for variant in order if variant in found}
    return CrossTable(job.model_name, 1, job.shares, cells)


def operator_table(published: OperatorRecords, shares: Sequence[str]) -> CrossTable:
    """Of one operator: published measurements; those of one job at one share were taken in turn."""
    found: dict[str, dict[str, Cell]] = {}
    for tuned_at, run_at, record in published.cells:
        found.setdefault(tuned_at, {})[run_at] = Cell(record.reported_secs, record.job)
    order = [UNTUNED_VARIANT, *shares]
    cells = {variant: found[variant] for variant in order if variant in found}
    return CrossTable(published.operator.name, published.operator.weight, tuple(shares), cells)


def sentences(table: CrossTable) -> list[str]:
    """What the table says: each share's schedule at each other share, against the one tuned there."""
    said = [
        _sentence(variant, share, lost)
        for share in table.shares
        for variant in table.shares
        if variant != share and (lost := table.loss_against(share, variant, share)) is not None
    ]
    robust = table.robust() if len(table.shares) > 1 else None
    if robust is not None:
        variant, share, lost = robust
        named = "the robust schedules" if variant == ROBUST_VARIANT else f"the schedules tuned on {share_text(variant)}"
        most = f"at most {with_interval(lost)} (on {share_text(share)})"
        said.append(f"one variant for all of these shares: {named} lose {most}")
    return said


def _sentence(variant: str, share: str, lost: Slowdown) -> str:
    served, tuned = f"served on {share_text(share)}", f"the schedule tuned on {share_text(variant)}"
    if lost.is_tie:
        return f"{served}, {tuned} does as well as the one tuned there, within the noise ({signed(lost)})"
    if lost.median > 0:
        return f"{served}, {tuned} loses {with_interval(lost)}"
    gain = with_interval(Slowdown(-lost.median, -lost.high, -lost.low))
    return f"{served}, {tuned} is {gain} faster than the one tuned there: that search had less luck"


def verdict(table: CrossTable, variant: str, share: str, lost: Slowdown) -> str:
    """`fastest` of its column, `tie` where the noise hides the difference, else the loss (`+900 % ± ?` where it is not
    known how far it holds).

    Several are the fastest when they are one schedule: the same measurement stands in their cells.
    """
    fastest = table.fastest(share)
    if fastest is not None and table.cells[variant][share] == table.cells[fastest][share]:
        return "fastest"
    is_unknown = math.isnan(lost.margin)  # of what was timed too seldom, such as an untuned model that takes seconds
    return "tie" if lost.is_tie and not is_unknown else signed(lost)


def share_text(share: str) -> str:
    """`1 core`, `2 cores`; other mechanisms as they are written."""
    mechanism, _, size = share.partition(":")
    return share if mechanism != "cpu" else f"{size} core{'' if size == '1' else 's'}"


def signed(lost: Slowdown) -> str:
    """`+1 % ± 3 %`, `+546 % (143 % .. 1610 %)`"""
    return f"{'+' if lost.median >= 0 else ''}{with_interval(lost)}"


def with_interval(lost: Slowdown) -> str:
    """`14 % ± 3 %`; `546 % (143 % .. 1610 %)` where ± would reach zero and the interval does not."""
    if not lost.is_tie and abs(lost.median) <= lost.margin:
        return f"{percent(lost.median)} ({percent(lost.low)} .. {percent(lost.high)})"
    return f"{percent(lost.median)} ± {percent(lost.margin)}"


def percent(fraction: float) -> str:
    """`14 %`, `0.4 %`; `?` where it is not known."""
    if math.isnan(fraction):
        return "?"
    return f"{fraction * 100:.{1 if abs(fraction) < 0.0995 else 0}f} %"
