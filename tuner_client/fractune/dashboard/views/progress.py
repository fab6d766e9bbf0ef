"""The best time so far of a model's operators or of one: curves from untuned on, and their numbers."""

from collections.abc import Mapping, Sequence

from fractune.dashboard.following import MOST_TRIALS, Point
from fractune.dashboard.views.page import Block, Cell, Chart, Series, columns_of
from fractune.text.text import span_text, time_text

_MOST_POINTS = 400
"""in a table of a chart's numbers"""

Progress = Mapping[str, Sequence[Point]]
"""each new best, by share"""


def progress_charts(progress: Progress, of: str, untuned_s: Mapping[str, float | None]) -> list[Chart]:
    """Over trials and over time, from untuned on: a step for each new best."""
    if not any(progress.values()):
        return []
    steps = {share: [*_untuned(untuned_s.get(share)), *points] for share, points in progress.items()}
    ways = (("trials at the share", "trials"), ("seconds since the job was created", "after_s"))
    return [_chart(steps, f"best so far of {of}, from untuned", label, name) for label, name in ways]


def _untuned(secs: float | None) -> list[Point]:
    """The first point; none where that time is not known."""
    return [] if secs is None else [Point(0, 0.0, secs)]


def _chart(progress: Progress, title: str, label: str, name: str) -> Chart:
    x = sorted({float(getattr(point, name)) for points in progress.values() for point in points})
    series = [
        Series(share, _steps(x, [(float(getattr(point, name)), 1e3 * point.best_s) for point in points]))
        for share, points in progress.items()
    ]
    return Chart(title, label, "ms", x, series, is_log=True)


def _steps(x: Sequence[float], points: Sequence[tuple[float, float]]) -> list[float | None]:
    """The last value at each place; None before the first."""
    found: list[float | None] = []
    waiting, last = list(reversed(points)), None
    for place in x:
        while waiting and waiting[-1][0] <= place:
            last = waiting.pop()[1]
        found.append(last)
    return found


def points_block(progress: Progress, of: str, trials: int) -> Block:
    """The numbers of the charts, the newest first. `trials`: how many of the job were read."""
    columns = columns_of("share, #trials, #after, #best")
    rows = [
        (
            point.after_s,
            (Cell(share), Cell(str(point.trials)), Cell(span_text(point.after_s)), Cell(time_text(point.best_s))),
        )
        for share, points in progress.items()
        for point in points
    ]
    newest = sorted(rows, key=lambda row: -row[0])
    notes = [] if len(newest) <= _MOST_POINTS else [f"the newest {_MOST_POINTS} of {len(newest)}"]
    if trials >= MOST_TRIALS:
        notes.append(f"of the newest {MOST_TRIALS:,} trials; the job's older ones are not read")
    shown = tuple(row for _, row in newest[:_MOST_POINTS])
    return Block(
        f"Best so far of {of}", columns, shown, tuple(notes), "not every operator has a time yet", is_folded=True
    )
