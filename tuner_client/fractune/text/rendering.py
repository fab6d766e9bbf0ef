"""A table as people read it: rich text in a terminal, HTML in a notebook, plain data for programs.

Names and messages come from models, workers and other users, so every text is shown literally. Rich takes none of it
for markup, and a terminal acts on none of it.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.table import Table as Grid
from rich.text import Text

from fractune.text.text import WIDTH_OF_A_PIPE
from fractune_core.errors import one_line


def literal(text: str, style: str = "") -> Text:
    """`text` on one line, for rich, which reads no markup in it."""
    return Text(one_line(text), style=style)


@dataclass(frozen=True)
class Column:
    """A column's heading, and whether numbers stand under it: those are set to the right."""

    heading: str
    numbers: bool = False


@dataclass(frozen=True, repr=False)
class Table:
    """A table that shows itself: as text by `print` and at the prompt, as rich text, as HTML in a notebook.

    `rows` are the same facts as plain data, for programs: a mapping for each row, times in seconds, ratios as
    fractions, None for what is not known.
    """

    columns: tuple[Column, ...]
    cells: tuple[tuple[str, ...], ...]
    """as shown, row by row"""
    rows: tuple[dict[str, Any], ...] = ()
    title: str = ""
    notes: tuple[str, ...] = ()
    """what the table says, sentence by sentence; shown under it"""

    def grid(self) -> Grid:
        """The table without its notes, for rich."""
        grid = Grid(title=literal(self.title) if self.title else None, title_justify="left")
        for column in self.columns:
            grid.add_column(literal(column.heading), justify="right" if column.numbers else "left")
        for row in self.cells:
            grid.add_row(*map(literal, row))
        return grid

    def __rich__(self) -> Group:
        return Group(self.grid(), *map(literal, self.notes))

    def __str__(self) -> str:
        console = Console(width=WIDTH_OF_A_PIPE, color_system=None, force_terminal=False, force_jupyter=False)
        with console.capture() as captured:
            console.print(self.grid())
        return "\n".join([captured.get().rstrip("\n"), *map(one_line, self.notes)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        head = "".join(f"<th{_side(column)}>{html.escape(column.heading)}</th>" for column in self.columns)
        body = "".join(f"<tr>{self._html_cells(row)}</tr>" for row in self.cells)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"

    def _html_cells(self, row: tuple[str, ...]) -> str:
        pairs = zip(self.columns, row, strict=True)
        return "".join(f"<td{_side(column)}>{html.escape(cell)}</td>" for column, cell in pairs)


def _side(column: Column) -> str:
    return f' style="text-align: {"right" if column.numbers else "left"}"'
