"""What a view says, for people as a page and for programs as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any
from urllib.parse import quote

from fractune.features.matrix.cross_table import CrossTable, cell_text, cross_text, model_table, table_json
from fractune.features.parts.parts import is_part_of
from fractune.server.job_status import JobStatus
from fractune.server.pace import Pace
from fractune.text.rendering import Table
from fractune.text.text import ago_text, moment_text, span_text
from fractune_core.errors import one_line
from fractune_core.files.buckets import shape_text
from fractune_core.jobs import JobState
from fractune_core.names import Collection
from fractune_core.operators import refused_node


@dataclass(frozen=True)
class Cell:
    """A cell of a table as a page shows it."""

    text: str
    link: str = ""
    """a path of this site; empty for none"""
    level: int = -1
    """of a heat map, from 0 (best) to 4; -1 = not coloured"""
    at: float | None = None
    """the time that `text` says in UTC, in seconds since 1970; None for any other cell"""
    is_code: bool = False
    """shown with its spaces and line breaks"""
    bar: float | None = None
    """length of a bar below the text, in percent"""
    colour: int | None = None
    """of a dot before the text, as of a `Piece`"""


@dataclass(frozen=True)
class Tile:
    """One fact that a reader looks for first."""

    name: str
    value: Cell
    notes: tuple[str, ...] = ()
    progress: float | None = None
    """of work, in percent"""
    line: tuple[tuple[float, float], ...] = ()
    """of a small curve: places from 0 to 100, the vertical one from above"""
    is_bad: bool = False
    """whether somebody should act"""


@dataclass(frozen=True)
class Block:
    """A table under a heading."""

    heading: str
    columns: tuple[tuple[str, bool], ...]
    """headings, and whether a column holds numbers"""
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    empty: str = "nothing yet"
    """shown in place of a table without rows"""
    aside: frozenset[int] = frozenset()
    """places of the columns that each row shows behind "more" """
    is_folded: bool = False
    """whether only the heading is shown at first"""
    form: Sequence[Field] = ()
    """filters of the rows"""

    @property
    def shown(self) -> list[int]:
        """Places of the other columns."""
        return [place for place in range(len(self.columns)) if place not in self.aside]

    @property
    def size(self) -> str:
        """How wide the table is at least: its rows are stacked in a narrower place."""
        return next(name for name, most in _SIZES if len(self.shown) <= most)


_SIZES = (("small", 4), ("middle", 7), ("large", 10), ("huge", math.inf))
"""classes of tables with so many columns at most"""
_MOST_COLUMNS = 7
"""with more, those that a narrow terminal leaves out first are put behind "more" """


@dataclass(frozen=True)
class Series:
    label: str
    values: Sequence[float | None]
    style: str = "steps"
    """`steps`, `line`, or `dots` for single values"""


@dataclass(frozen=True)
class Chart:
    """Values over one axis. Its numbers stand in a block of the same page too."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    series: Sequence[Series]
    is_log: bool = False
    """whether equal factors are equally far apart"""

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "xLabel": self.x_label,
            "yLabel": self.y_label,
            "isLog": self.is_log,
            "x": self.x,
            "series": [asdict(each) for each in self.series],
        }


@dataclass(frozen=True)
class Dot:
    """A value in a picture of dots: its place from the left and from above, in percent."""

    x: float
    y: float = 50.0
    colour: int | None = None
    """as of a `Piece`; None for a ring"""
    title: str = ""
    """shown under a pointer"""


@dataclass(frozen=True)
class Dots:
    """Single values along one axis or two. Its numbers stand in a block of the same page too."""

    title: str
    ends: tuple[str, str]
    """of the horizontal axis"""
    dots: Sequence[Dot]
    marks: Sequence[tuple[float, str]] = ((50.0, ""),)
    """horizontal lines: their places, and what they mean"""
    legend: Sequence[tuple[int, str]] = ()
    """colours and what they mean"""


@dataclass(frozen=True)
class Piece:
    """A part of a bar, in percent of its length."""

    begin: float
    length: float
    colour: int
    """from 0 to 5"""
    lines: Sequence[str]
    title: str = ""
    """shown under a pointer; empty for the lines"""


@dataclass(frozen=True)
class Bar:
    label: str
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Bars:
    """Parts of things of equal size. Its contents stand in a block of the same page too."""

    title: str
    bars: Sequence[Bar]
    legend: Sequence[tuple[int, str]] = ()
    """colours and what they mean"""
    is_thin: bool = False
    """whether each piece has one line of text"""


@dataclass(frozen=True)
class Field:
    """A field of a form that filters a view."""

    name: str
    value: str
    label: str
    choices: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """of the choices, for people; empty: the choices themselves"""
    group: str = ""
    """what the field and its neighbours describe together; empty for a field that stands alone"""

    @property
    def options(self) -> list[tuple[str, str]]:
        """Choices and labels."""
        return list(zip(self.choices, self.labels or [each or "any" for each in self.choices], strict=True))


@dataclass(frozen=True)
class Page:
    title: str
    data: Mapping[str, Any]
    """the same facts for programs"""
    lead: str = ""
    """the answer, in one line"""
    warnings: Sequence[str] = ()
    """what keeps work from going on"""
    tiles: Sequence[Tile] = ()
    cards: Sequence[Tile] = ()
    """the same of things in progress, which need more room"""
    first: Sequence[Block | Bars] = ()
    """side by side where there is room, before everything else"""
    facts: Sequence[tuple[str, Cell]] = ()
    """single facts by name, above the tables"""
    blocks: Sequence[Block] = ()
    charts: Sequence[Chart] = ()
    dots: Sequence[Dots] = ()
    bars: Sequence[Bars] = ()
    form: Sequence[Field] = ()
    actions: Sequence[tuple[str, str]] = ()
    """buttons: the text and the path that gets a POST"""
    links: Sequence[tuple[str, str]] = ()
    """texts and paths"""
    is_live: bool = True
    """whether it is shown anew when the server has changed"""
    is_whole: bool = True
    """False: its curves are of the newest trials, and it is shown again in a second with more of them"""
    status: int = field(default=200)
    """of HTTP"""


def grouped(form: Sequence[Field]) -> list[tuple[str, list[Field]]]:
    """The fields by group, in order."""
    return [(name, list(fields)) for name, fields in groupby(form, key=lambda each: each.group)]


def columns_of(headings: str) -> tuple[tuple[str, bool], ...]:
    """The columns of a block, by their headings: `job, model, #trials`. Those with a `#` hold numbers."""
    return tuple((each.removeprefix("#"), each.startswith("#")) for each in headings.split(", "))


def block_of(table: Table, heading: str = "", empty: str = "nothing yet", *, is_folded: bool = False) -> Block:
    """A block with the cells of a table."""
    order = sorted(range(len(table.columns)), key=lambda place: -table.columns[place].dispensable)
    aside = [place for place in order[: max(0, len(order) - _MOST_COLUMNS)] if table.columns[place].dispensable]
    return Block(
        heading or table.title,
        tuple((column.heading, column.numbers) for column in table.columns),
        tuple(tuple(map(Cell, row)) for row in table.cells),
        table.notes,
        empty,
        frozenset(aside),
        is_folded,
    )


LEVELS = (0.02, 0.1, 0.3, 1.0)
"""losses at which the next colour begins"""


def heat_block(job: JobStatus) -> Block:
    return cross_block(model_table(job))


def cross_block(table: CrossTable) -> Block:
    text = cross_text(table)
    rows = tuple(
        (
            Cell(variant),
            *(Cell(cell_text(table, variant, share), level=_level(table, variant, share)) for share in table.shares),
        )
        for variant in table.cells
    )
    columns = tuple((column.heading, column.numbers) for column in text.columns)
    return Block("Tuned at x run at", columns, rows, text.notes)


def heat_data(job: JobStatus) -> dict[str, Any]:
    """As `fractune matrix --json` prints it."""
    return table_json(model_table(job))


def _level(table: CrossTable, variant: str, share: str) -> int:
    """0 for the fastest and for ties; by its median where too few timings give no interval."""
    lost = table.slowdown(variant, share)
    if lost is None:
        return -1
    return 0 if lost.is_tie and not math.isnan(lost.margin) else sum(lost.median > limit for limit in LEVELS)


ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
_NO_TIME = "-"
_LONG = 300
"""characters of a message in a table"""
_SHORT = 60
"""characters of a model's name in a list"""

_PARTS = "a client that tunes in parts goes on with jobs of the parts"


def job_path(name: str) -> str:
    return f"/jobs/{quote(Collection.JOBS.parse(name), safe='')}"


def job_label(job: JobStatus) -> str:
    """The job in a list to choose from: `model.onnx, ids 1x16, jobs/1`."""
    return ", ".join(filter(None, (one_line(job.model_name)[:_SHORT], inputs_text(job), job.name)))


def model_path(name: str) -> str:
    return f"/models/{quote(Collection.MODELS.parse(name), safe='')}"


def job_data(job: JobStatus) -> dict[str, Any]:
    """The job as plain JSON: seconds, fractions, `state` as text."""
    found = asdict(replace(job, pace=Pace()))  # what is left out anyway may be large
    found |= found.pop("spec") | found.pop("progress")
    for name in ("variants", "check_inputs", "pace"):
        del found[name]
    found |= {name: getattr(job, name) for name in ("model", "shares", "state", "priority")}
    found["time_left_s"] = None if job.time_left is None else job.time_left.secs
    found["results"] = [
        {
            **asdict(each),
            "granted": each.granted.to_json(),
            "speed_up": each.speed_up if each.tuned_s > 0 else None,
            "at_load": [asdict(one) for one in each.at_load],
        }
        for each in job.results
    ]
    found["operators"] = [
        {**asdict(each), "arithmetic": None if each.arithmetic is None else asdict(each.arithmetic)}
        for each in job.operators
    ]
    found["roofs"] = {share: asdict(roof) for share, roof in job.roofs.items()}
    return found


def jobs_block(heading: str, jobs: list[JobStatus], empty: str, among: Sequence[JobStatus] = ()) -> Block:
    """A row for each job, with links to it and to its model; with the shapes of the inputs, if some were given. The
    jobs of parts are looked for `among` more jobs.
    """
    shaped = any(job.spec.inputs for job in jobs)
    columns = (
        *(("job", False), ("model", False), *([("inputs", False)] if shaped else []), ("shares", False)),
        *(("state", False), ("trials", True), ("time", True), ("created", False), ("message", False)),
    )
    return Block(heading, columns, tuple(_job_row(job, among, shaped=shaped) for job in jobs), empty=empty)


def inputs_text(job: JobStatus) -> str:
    """`ids 1x16, mask 1x16`; empty if the model's own shapes were taken."""
    return one_line(shape_text({name: shape for name, shape in job.spec.inputs.items() if shape}))


def _job_row(job: JobStatus, among: Sequence[JobStatus], *, shaped: bool) -> tuple[Cell, ...]:
    trials = f"{job.progress.candidates_had} / {job.progress.trials_planned}" if job.progress.trials_planned else "-"
    return (
        Cell(Collection.JOBS.parse(job.name), job_path(job.name)),
        Cell(one_line(job.model_name), model_path(job.model) if job.model else ""),
        *([Cell(inputs_text(job) or "-")] if shaped else []),
        Cell(", ".join(job.shares)),
        Cell(job.state.value),
        Cell(trials),
        Cell(span_text(job.wall_s or job.progress.elapsed_s)),
        moment(job.created_at),
        Cell("; ".join(filter(None, (one_line(job.message)[:_LONG], _way_on(job, among))))),
    )


def part_jobs(job: JobStatus, jobs: Sequence[JobStatus]) -> list[JobStatus]:
    """Of the `jobs`, which are newest first, those of the parts, with which a client went on after the importer had
    refused the model.
    """
    if refused_node(job.message) is None:
        return []
    later = [each for each in jobs if each.created_at > job.created_at]
    end = min((each.created_at for each in later if each.model_name == job.model_name), default=math.inf)
    return [each for each in later if is_part_of(each.model_name, job.model_name) and each.created_at < end]


def _way_on(job: JobStatus, among: Sequence[JobStatus]) -> str:
    in_order = reversed(part_jobs(job, among))
    parts = [f"{Collection.JOBS.parse(each.name)} ({each.state.value})" for each in in_order]
    if parts:
        return f"the tuning went on in parts: {', '.join(parts)}"
    return _PARTS if refused_node(job.message) else ""


def moment(secs: float, link: str = "") -> Cell:
    """A time, which the page shows in the reader's zone."""
    text = plain_moment(secs)
    return Cell(text, link, at=None if text == _NO_TIME else secs)


def ago_from(now: float) -> Callable[[float], str]:
    """How a page says a time: how long ago it was."""
    return partial(ago_text, now=now)


def plain_moment(secs: float) -> str:
    """The time in UTC. `-` for 0, and for a number outside the calendar: an imported record may have any number."""
    try:
        return moment_text(secs) if secs else _NO_TIME
    except (OverflowError, ValueError, OSError):
        return _NO_TIME


def failures_block(heading: str, failures: Mapping[str, float]) -> Block:
    """A row for each cause of `failures`, the number of failed measurements by cause."""
    rows = tuple((Cell(cause), Cell(f"{count:g}")) for cause, count in failures.items())
    columns = columns_of("cause, #number")
    return Block(heading, columns, rows, empty="none failed", is_folded=not rows)


def seconds_block(heading: str, name: str, spans_s: Mapping[str, float]) -> Block:
    rows = tuple((Cell(each), Cell(span_text(secs))) for each, secs in spans_s.items())
    return Block(heading, ((name, False), ("time", True)), rows, is_folded=True)
