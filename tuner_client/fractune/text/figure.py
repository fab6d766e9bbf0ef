"""Pictures as files: a missing library or an unwritable path is found before the work."""

from __future__ import annotations

import importlib.util
import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractune.text.output_files import check_writable
from fractune_core.errors import BadRequest, FractuneError, StateUnusable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), ScalarFormatter | LogFormatter):
            for text in axis.findobj(Text):
                text.set_parse_math(text is not axis.label)
