"""Where a model's time goes, as bars and a table of operators, and its best time so far, as curves and numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from urllib.parse import quote

from fractune.dashboard.following import MOST_TRIALS, Point
from fractune.dashboard.views.page import Bar, Bars, Block, Cell, Chart, Field, Piece, Series, columns_of, job_path
from fractune.features.tune.times_table import REST, ModelPart, model_parts, time_table
from fractune.server.job_status import JobStatus, OperatorStatus
from fractune.text.text import disturbed_notes, ratio_text, roof_text, span_text, time_text
from fractune_core.analysis.inside import BETWEEN, OTHERS
from fractune_core.analysis.roofline import is_memory_bound, reached
from fractune_core.errors import NotFound, one_line, shortened

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


_KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("convolution", frozenset({"conv2d", "conv1d", "conv3d", "conv", "conv2d_transpose", "depthwise", "winograd"})),
    ("matrix product", frozenset({"matmul", "dense", "gemm", "einsum", "linear", "attention"})),
    ("reduction", frozenset({"softmax", "sum", "mean", "max", "min", "pool", "norm", "argmax", "cumsum", "variance"})),
    ("elementwise", frozenset()),
    (
        "data movement",
        frozenset({"transpose", "blocks", "reshape", "concat", "concatenate", "pad", "split", "take", "gather"})
        | {"slice", "strided", "lookup", "resize", "cast", "broadcast", "tile", "layout", "expand", "flip"},
    ),
    ("between operators", frozenset()),
)
_ELEMENTWISE, _BETWEEN = 3, 5
COLOURS = len(_KINDS)
_LEAST_PIECE = 0.02
"""of a bar, from which a part is a piece of its own"""
_LEAST_TEXT = 0.09
"""of a bar, from which a piece has room for text"""
_LETTER = 0.011
"""of a bar, about: the width of a letter"""
_SMALL = 0.005
"""of the time at each share: an operator with less hardly counts"""
_NAME = 32
"""letters of an operator's name above a bar"""
_TIME = "time: all its runs in one inference, inside the model where that is known; roof: what the share allows"
_FILTERED = 6
"""rows from which on they have filters"""
_MOST_SHOWN = 2
"""shares whose roof and gain are shown; of more, behind each row's heading"""


def kind_of(name: str) -> int:
    """The place of an operator's kind, by the words of its name: the kind that costs most decides."""
    if name in (BETWEEN, OTHERS, REST):
        return _BETWEEN
    words = {word if word.endswith("d") else word.rstrip("0123456789") for word in name.lower().split("_")}
    return next((kind for kind, (_, known) in enumerate(_KINDS) if words & known), _ELEMENTWISE)


def time_bars(job: JobStatus) -> Bars | None:
    """A bar for each share, its parts in the same order in all bars; before the job's end of the operators alone. None
    without times.
    """
    so_far = {share: _operators_at(job, share, whole_s) for share, whole_s in job.operators_s.items()}
    parts = {each.share: model_parts(job, each) for each in job.tuned_results} or so_far
    parts = {share: found for share, found in parts.items() if found}
    if not parts:
        return None
    weights: dict[str, float] = {}
    for part in (part for found in parts.values() for part in found):
        weights[_key(part)] = max(weights.get(_key(part), 0.0), part.part)
    used = {kind_of(part.name) for found in parts.values() for part in found}
    inside = {each.share for each in job.tuned_results if each.inside}
    title = "Where the time goes" if job.tuned_results else "Where the operators' time goes so far"
    legend = tuple((kind, _KINDS[kind][0]) for kind in sorted(used))
    bars = tuple(
        Bar(_bar_label(share, found, is_inside=share in inside), _pieces(found, weights))
        for share, found in parts.items()
    )
    return Bars(title, bars, legend, is_thin=True)


def _operators_at(job: JobStatus, share: str, whole_s: float) -> list[ModelPart]:
    times = [
        (each, each.weight * each.best_s[share])
        for each in job.operators
        if each.selected and each.weight and share in each.best_s
    ]
    return [ModelPart(each.name, secs / whole_s, secs, each.workload_hash) for each, secs in times]


def _bar_label(share: str, parts: Sequence[ModelPart], *, is_inside: bool) -> str:
    heaviest = max(parts, key=lambda part: part.part)
    name = short_name(heaviest.name)
    name = f"{name[:_NAME]}..." if len(name) > _NAME + 3 else name
    least = " at its quickest" if is_inside else ""
    return f"{share}: {time_text(sum(part.secs for part in parts))}{least}; {heaviest.part:.0%} in {name}"


def _pieces(parts: Sequence[ModelPart], weights: Mapping[str, float]) -> list[Piece]:
    """In percent of the bar; small parts of one kind together, behind the others."""
    whole = max(1.0, sum(part.part for part in parts))
    large = [part for part in parts if part.part >= _LEAST_PIECE]
    pieces = [
        (part.part, kind_of(part.name), short_name(part.name))
        for part in sorted(large, key=lambda part: -weights[_key(part)])
    ]
    for kind in range(len(_KINDS)):
        small = [part.part for part in parts if part.part < _LEAST_PIECE and kind_of(part.name) == kind]
        if small:
            pieces.append((sum(small), kind, f"{len(small)} small of {_KINDS[kind][0]}"))
    found, begin = [], 0.0
    for part, kind, name in pieces:
        length = part / whole
        found.append(Piece(100 * begin, 100 * length, kind, [_fitting(name, part, length)], f"{name}: {part:.0%}"))
        begin += length
    return found


def _key(part: ModelPart) -> str:
    return part.workload_hash or part.name


def _fitting(name: str, part: float, length: float) -> str:
    """As much text as a piece of the bar has room for."""
    if length < _LEAST_TEXT / 2:
        return ""
    text = f"{part:.0%}"
    room = int(length / _LETTER) - len(text) - 1
    return f"{text} {name[:room]}" if length >= _LEAST_TEXT and room > 2 else text


def short_name(name: str) -> str:
    return one_line(name).removeprefix("fused_")


FILTERS = ("name", "kind", "at")
"""of the operators: a part of the name, a kind, a share"""


def operator_blocks(job: JobStatus, only: Mapping[str, str] = MappingProxyType({})) -> list[Block]:
    """A row for each operator and each other call that passes the filters, the heaviest first. Without a filter a
    folded block has those that hardly count. Raises NotFound for a share that the job is not tuned at.
    """
    name, kind, at = (only.get(each, "") for each in FILTERS)
    if at and at not in job.tuned_at:
        raise NotFound(f"at '{shortened(at, 40)}': {job.name} is tuned at {', '.join(job.tuned_at)}")
    shares = [at] if at else list(job.tuned_at)
    every = _rows(job)
    sums = {share: sum(each.secs.get(share, 0.0) for each in every) for share in shares}
    rows = sorted(
        (
            each
            for each in every
            if name.casefold() in each.name.casefold() and kind in ("", _KINDS[kind_of(each.name)][0])
        ),
        key=lambda each: -max((each.secs.get(share, 0.0) for share in shares), default=0.0),
    )
    small = [each for each in rows if all(each.secs.get(share, 0.0) <= _SMALL * sums[share] for share in sums)]
    if len(small) == len(rows) or name or kind:
        small = []
    known = disturbed_notes(job.results)  # the page says them above
    notes = [_TIME] if rows else []
    notes += [each for each in time_table(job).notes if each not in known] if job.tuned_results else []
    longest = {share: max((each.secs.get(share, 0.0) for each in every), default=0.0) for share in shares}
    heavy = [each for each in rows if each not in small]
    block = _block(shares, "Operators", [_cells(job, each, longest) for each in heavy], tuple(notes))
    kinds = ("", *(name for name, _ in _KINDS))
    form = (
        Field("name", name, "part of the name"),
        Field("kind", kind, "kind", kinds),
        Field("at", at, "share", ("", *job.tuned_at)),
    )
    empty = "no operator passes the filters" if every else "the model is not split yet"
    blocks = [replace(block, form=form if len(every) > _FILTERED else (), empty=empty)]
    if small:
        heading = f"{len(small)} operators below {_SMALL:.1%} each"
        blocks.append(_block(shares, heading, [_cells(job, each, longest) for each in small], (), is_folded=True))
    return blocks


def _block(
    shares: Sequence[str],
    heading: str,
    rows: Sequence[tuple[Cell, ...]],
    notes: tuple[str, ...],
    *,
    is_folded: bool = False,
) -> Block:
    """Without columns that are empty in all rows."""
    columns = (
        ("operator", False),
        *((f"time {share}", True) for share in shares),
        *((f"of roof {share}", True) for share in shares),
        *((f"gain {share}", True) for share in shares),
        *(("trials", True), ("runs", True)),
        *((f"once, alone {share}", True) for share in shares),
        *((f"untuned {share}", True) for share in shares),
        ("implementation", False),
    )
    known = [place for place in range(len(columns)) if any(row[place].text != "-" for row in rows)]
    shown = 1 + len(shares) * (3 if len(shares) <= _MOST_SHOWN else 1)
    return Block(
        heading,
        tuple(columns[place] for place in known),
        tuple(tuple(row[place] for place in known) for row in rows),
        notes,
        aside=frozenset(at for at, place in enumerate(known) if place >= shown),
        is_folded=is_folded,
    )


@dataclass(frozen=True)
class _Row:
    name: str
    secs: Mapping[str, float]
    """in one inference, by share"""
    operator: OperatorStatus | None = None
    """None for another call"""


def _rows(job: JobStatus) -> list[_Row]:
    parts = [(each.share, part) for each in job.tuned_results for part in model_parts(job, each)]
    of_calls: dict[str, dict[str, float]] = {}
    of_operators = {
        each.workload_hash: {share: each.weight * secs for share, secs in each.best_s.items()} for each in job.operators
    }
    for share, part in parts:
        found = of_operators[part.workload_hash] if part.workload_hash else of_calls.setdefault(part.name, {})
        found[share] = part.secs
    operators = [_Row(each.name, of_operators[each.workload_hash], each) for each in job.operators]
    return [*operators, *(_Row(name, secs) for name, secs in of_calls.items())]


def _cells(job: JobStatus, row: _Row, longest: Mapping[str, float]) -> tuple[Cell, ...]:
    """At the shares of `longest`."""
    shares, each = list(longest), row.operator
    times = [
        Cell(time_text(secs), bar=100 * secs / longest[share]) if (secs := row.secs.get(share)) else Cell("-")
        for share in shares
    ]
    if each is None:
        blank = [Cell("-")] * (4 * len(shares) + 3)
        return (Cell(one_line(row.name), colour=kind_of(row.name)), *times, *blank)
    ways = dict.fromkeys(way or "direct" for way in each.implementations.values())
    return (
        Cell(
            one_line(each.name),
            f"{job_path(job.name)}?operator={quote(each.workload_hash, safe='')}",
            colour=kind_of(each.name),
        ),
        *times,
        *(roof_cell(job, each, share) for share in shares),
        *(Cell(ratio_text(each.untuned_s.get(share), each.best_s.get(share))) for share in shares),
        *(Cell(str(each.trials) if each.selected else "left out"), Cell(str(each.weight))),
        *(Cell(time_text(each.best_s.get(share))) for share in shares),
        *(Cell(time_text(each.untuned_s.get(share))) for share in shares),
        Cell(", ".join(ways) or "-"),
    )


def roof_cell(job: JobStatus, operator: OperatorStatus, share: str) -> Cell:
    limits = operator.arithmetic, job.roofs.get(share), operator.best_s.get(share)
    part = reached(*limits)
    return Cell(
        roof_text(part, memory_bound=is_memory_bound(*limits)), bar=None if part is None else 100 * min(part, 1.0)
    )
