"""A bundle beside other runtimes, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from fractune.text.rendering import Column, Table
from fractune.text.text import estimate_text, time_text
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.files.compared import OURS, Compared


class OneContest(Protocol):
    @property
    def shape(self) -> str: ...
    @property
    def share(self) -> str: ...
    @property
    def compared(self) -> Compared: ...


def compared_table(name: str, contests: Sequence[OneContest]) -> Table:
    """A row for each contender at each share: its times, and the bundle's time over its time with the interval."""
    shaped = any(each.shape for each in contests)
    columns = (
        *([Column("shape", wraps_at=24)] if shaped else []),
        *(Column("share"), Column("runtime"), Column("in a loop", numbers=True), Column("paced", numbers=True)),
        *(Column("bundle over it, loop", numbers=True), Column("paced", numbers=True)),
        *(Column("differs", numbers=True, dispensable=1), Column("serves")),
    )
    cells = tuple(row for each in contests for row in _rows(each, shaped=shaped))
    notes = tuple(
        f"note: {runtime} does not compete at {each.share}: {why}"
        for each in contests
        for runtime, why in each.compared.refused.items()
    )
    return Table(title=f"{name} beside other runtimes", columns=columns, cells=cells, notes=notes)


def _rows(each: OneContest, *, shaped: bool) -> Iterator[tuple[str, ...]]:
    serves = {goal: each.compared.winner(goal) for goal in ("latency", "throughput")}
    for name, timed in each.compared.times.items():
        goals = [goal for goal, winner in serves.items() if winner == name]
        ratios = ("-", "-") if name == OURS else (_ratio(timed.loop), _ratio(timed.paced))
        differs = "-" if timed.difference is None else f"{timed.difference:.0e}"
        times = (time_text(timed.loop_s), time_text(timed.paced_s))
        yield (*([each.shape] if shaped else []), each.share, name, *times, *ratios, differs, ", ".join(goals) or "-")


def _ratio(found: tuple[float, float, float] | None) -> str:
    return estimate_text(None if found is None else Estimate(*found))
