"""Results as people read them: a table in a terminal, HTML in a notebook, plain data for programs, a picture as a file.

Names and messages come from models, workers and other users, so every text is shown literally. Rich takes none of it
for markup, and a terminal acts on none of it. A missing library for pictures, or an unwritable path, is found before
the work.
"""

from __future__ import annotations

import html
import importlib.util
import itertools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from fractune.text.output_files import check_writable
from fractune.text.text import pandas_frame, polars_frame
from fractune_core.errors import BadRequest, FractuneError, StateUnusable, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDEST = 10_000
"""no line is cut: a table that cannot be narrow is wider than its terminal"""
_LONGEST_WORD = 24
"""of a name in a column that may wrap: a longer one is folded where a line ends"""
_PIECE = re.compile(r"[^\s_]*_+|[^\s_]+|\s+")
"""a line of a wrapped cell ends at a space or behind an underscore of a name, if it can"""


def literal(text: str, style: str = "") -> Text:
    """`text` on one line, for rich, which reads no markup in it."""
    return Text(one_line(text), style=style)


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    heading: str
    numbers: bool = False
    """set to the right"""
    dispensable: int = 0
    """on a narrow terminal columns with the highest number are left out first, and those with 0 never"""
    wraps_at: int = 0
    """long cells may be wrapped to this width; 0 = never, as for ids, shares and names of jobs"""


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

    def print(self) -> None:
        """Print the table without its notes to standard output: as wide as the terminal, or whole into a pipe."""
        Console(width=_WIDEST).print(self.fitted(_terminal_columns()))

    def fitted(self, width: int | None) -> Group:
        """The table without its notes, for rich, in at most `width` columns of a terminal if that is possible.

        Columns that may wrap become narrow first, then the dispensable ones are left out, and a line names them. No
        other cell is cut or wrapped. Room that is left is for cells first, then for headings. None = a pipe: every
        column, and every row on one line.
        """
        shown = self._widths(width)
        grid = Grid(title=literal(self.title) if self.title else None, title_justify="left")
        for at, column_width in shown.items():
            column = self.columns[at]
            justify: Literal["left", "right"] = "right" if column.numbers else "left"
            grid.add_column(literal(column.heading), justify=justify, width=column_width, overflow="fold")
        for row in self.cells:
            grid.add_row(*(Text(_wrapped(one_line(row[at]), column_width)) for at, column_width in shown.items()))
        left_out = dict.fromkeys(each.heading for at, each in enumerate(self.columns) if at not in shown)
        line = f"left out: {', '.join(left_out)}; --json has all"
        return Group(grid, *([literal(line)] if left_out else []))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.fitted(options.max_width)
        yield from map(literal, self.notes)

    def __str__(self) -> str:
        return "\n".join([self._text(_terminal_columns()), *map(one_line, self.notes)])

    __repr__ = __str__

    def _text(self, width: int | None) -> str:
        console = Console(width=_WIDEST, color_system=None, force_terminal=False, force_jupyter=False)
        with console.capture() as captured:
            console.print(self.fitted(width))
        return captured.get().rstrip("\n")

    def _widths(self, width: int | None) -> dict[int, int]:
        """The width of each column that is shown, by its place."""
        needs = {at: self._needs(at) for at in range(len(self.columns))}
        if width is None:
            return {at: whole for at, (_, _, whole) in needs.items()}

        def spare() -> int:
            return width - 1 - sum(3 + least for least, _, _ in needs.values())

        while spare() < 0 and (most := max(self.columns[at].dispensable for at in needs)):
            needs = {at: need for at, need in needs.items() if self.columns[at].dispensable < most}
        widths = {at: least for at, (least, _, _) in needs.items()}
        left = max(0, spare())
        for unwrapped in (1, 2):
            lacks = {at: need[unwrapped] - widths[at] for at, need in needs.items()}
            for waiting, at in enumerate(sorted(lacks, key=lambda at: lacks[at])):
                given = min(lacks[at], left // (len(lacks) - waiting))
                widths[at], left = widths[at] + given, left - given
        return widths

    def _needs(self, at: int) -> tuple[int, int, int]:
        """The least width of a column, and the widths at which no cell is wrapped, and not the heading either."""
        column = self.columns[at]
        cells = max((cell_len(one_line(row[at])) for row in self.cells), default=0)
        heading = one_line(column.heading)
        headings = max(map(cell_len, heading.split()), default=0)
        words = max(
            (cell_len(each.strip()) for row in self.cells for each in _PIECE.findall(one_line(row[at]))), default=0
        )
        least = max(headings, min(cells, max(column.wraps_at, min(words, _LONGEST_WORD)) if column.wraps_at else cells))
        return least, max(least, cells), max(cells, cell_len(heading))

    def to_pandas(self) -> Any:
        """The `rows` as a `pandas.DataFrame`. Raises FractuneError without pandas."""
        return pandas_frame(self.rows)

    def to_polars(self) -> Any:
        """The `rows` as a `polars.DataFrame`. Raises FractuneError without Polars."""
        return polars_frame(self.rows)

    def _repr_html_(self) -> str:
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        head = "".join(f"<th{_side(column)}>{html.escape(column.heading)}</th>" for column in self.columns)
        body = "".join(f"<tr>{self._html_cells(row)}</tr>" for row in self.cells)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"

    def _html_cells(self, row: tuple[str, ...]) -> str:
        pairs = zip(self.columns, row, strict=True)
        return "".join(f"<td{_side(column)}>{html.escape(cell)}</td>" for column, cell in pairs)


def _wrapped(text: str, width: int) -> str:
    """`text` in lines of at most `width` cells, but for pieces that are longer: the grid folds those."""
    lines = [""]
    for piece in _PIECE.findall(text):
        if lines[-1] and cell_len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip()
    return "\n".join(map(str.rstrip, lines))


def _side(column: Column) -> str:
    return f' style="text-align: {"right" if column.numbers else "left"}"'


def _terminal_columns() -> int | None:
    """None = standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


_SUFFIXES = (".svg", ".png")


class Drawable:
    """A value that draws itself, by `_draw`."""

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw to `path` (.svg or .png).

        Raises BadRequest for another suffix, FractuneError without matplotlib, StateUnusable.
        """
        check_picture(Path(path), "path")
        self._draw(Path(path))

    def _repr_svg_(self) -> str | None:
        """The picture in a notebook; nothing without matplotlib."""
        if importlib.util.find_spec("matplotlib") is None:
            return None
        with tempfile.TemporaryDirectory(prefix="fractune-picture-") as folder:
            path = Path(folder) / "picture.svg"
            self._draw(path)
            return path.read_text(encoding="utf-8")

    def _draw(self, path: Path) -> None:
        raise NotImplementedError


def check_picture(path: Path | None, name: str = "--picture") -> None:
    """Raises BadRequest for another format, FractuneError without matplotlib, and StateUnusable for an unwritable
    file.
    """
    if path is None:
        return
    if path.suffix not in _SUFFIXES:
        raise BadRequest(f"{name} {path}: write a name that ends in {' or '.join(_SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise FractuneError("a picture needs matplotlib; install 'fractune[plot]'")
    check_writable(name, path)


def draw_panels(
    figure: Figure, drawn: Sequence[Any], columns: int, draw: Callable[..., None], *, same_scale: bool = False
) -> Any:
    """Draw each value on axes of its own by `draw(axes, value)`; returns all axes, and their legend's handles and
    labels, each label once.
    """
    rows = -(-len(drawn) // columns)
    grid = list(figure.subplots(rows, columns, squeeze=False, sharex=same_scale, sharey=same_scale).flat)
    for axes, value in itertools.zip_longest(grid, drawn):
        if value is None:
            axes.set_visible(False)
        else:
            draw(axes, value)
    handles = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    return grid, list(handles.values()), list(handles)


def save_figure(figure: Figure, path: Path) -> None:
    """Raises StateUnusable when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _show_literally(figure)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise StateUnusable(f"cannot write the picture {path}: {error.strerror}") from error


def _show_literally(figure: Figure) -> None:
    """Take no text for a formula: a name may have any characters. Numbers on an axis are matplotlib's own formulas."""
    from matplotlib.text import Text as Label
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    for text in figure.findobj(Label):
        text.set_parse_math(False)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), ScalarFormatter | LogFormatter):
            for text in axis.findobj(Label):
                text.set_parse_math(text is not axis.label)
