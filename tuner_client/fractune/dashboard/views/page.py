"""What a view says, for people as a page and for programs as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from fractune.text.rendering import Table


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


@dataclass(frozen=True)
class Series:
    label: str
    values: list[float | None]


@dataclass(frozen=True)
class Chart:
    """Lines over one axis. Its numbers stand in a block of the same page too."""

    title: str
    x_label: str
    y_label: str
    x: list[float]
    series: list[Series]

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "xLabel": self.x_label,
            "yLabel": self.y_label,
            "x": self.x,
            "series": [{"label": each.label, "values": each.values} for each in self.series],
        }


@dataclass(frozen=True)
class Dot:
    """A value on a strip."""

    place: float
    """from 0 (the least value) to 100 (the greatest)"""
    is_apart: bool = False
    """drawn as a ring"""


@dataclass(frozen=True)
class Strip:
    """Single values along one axis. Its numbers stand in a block of the same page too."""

    title: str
    least: str
    greatest: str
    dots: Sequence[Dot]


@dataclass(frozen=True)
class Piece:
    """A part of a bar, in percent of its length."""

    begin: float
    length: float
    colour: int
    """from 0 to 5"""
    lines: Sequence[str]


@dataclass(frozen=True)
class Bar:
    label: str
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Bars:
    """Parts of things of equal size. Its contents stand in a block of the same page too."""

    title: str
    bars: Sequence[Bar]


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
    facts: Sequence[tuple[str, Cell]] = ()
    """single facts by name, above the tables"""
    blocks: Sequence[Block] = ()
    charts: Sequence[Chart] = ()
    strips: Sequence[Strip] = ()
    bars: Sequence[Bars] = ()
    form: Sequence[Field] = ()
    actions: Sequence[tuple[str, str]] = ()
    """buttons: the text and the path that gets a POST"""
    links: Sequence[tuple[str, str]] = ()
    """texts and paths"""
    is_live: bool = True
    """whether it is shown anew when the server has changed"""
    status: int = field(default=200)
    """of HTTP"""

    @property
    def groups(self) -> list[tuple[str, list[Field]]]:
        """The fields of the form by group, in order."""
        return [(name, list(fields)) for name, fields in groupby(self.form, key=lambda each: each.group)]


def block_of(
    table: Table, heading: str = "", links: Sequence[Mapping[int, str]] = (), empty: str = "nothing yet"
) -> Block:
    """A block with the cells of a table. `links`: by row, the path behind the cell of a column."""
    named = list(links) or [{} for _ in table.cells]
    return Block(
        heading or table.title,
        tuple((column.heading, column.numbers) for column in table.columns),
        tuple(
            tuple(Cell(text, linked.get(place, "")) for place, text in enumerate(row))
            for row, linked in zip(table.cells, named, strict=True)
        ),
        table.notes,
        empty,
    )
