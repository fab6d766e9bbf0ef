"""The table tuned-at x run-at as a picture, by matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner_client.text import time_text
from tuner_core.errors import BadRequest, FractuneError, StateUnusable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUFFIXES = (".svg", ".png")


def check_picture(path: Path) -> None:
    """Raises BadRequest for a format that cannot be drawn, FractuneError when matplotlib is missing."""
    if path.suffix not in _SUFFIXES:
        raise BadRequest(f"--picture {path}: write a name that ends in {' or '.join(_SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise FractuneError("--picture needs matplotlib; install 'fractune[local]'")


def draw_table(times: Mapping[str, Mapping[str, float]], model: str, path: Path) -> None:
    """Draw latencies in seconds, by the variant's `tuned at` and then by the share it ran at, to `path`.

    A cell's colour is its loss against the fastest variant in its column. Raises StateUnusable.
    """
    from matplotlib.figure import Figure

    rows = list(times)
    columns = list(dict.fromkeys(share for row in times.values() for share in row))
    best = {share: min(row[share] for row in times.values() if share in row) for share in columns}
    losses = [[times[row].get(share, float("nan")) / best[share] - 1 for share in columns] for row in rows]
    figure = Figure(figsize=(2.6 + 1.7 * len(columns), 1.6 + 0.7 * len(rows)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(losses, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), [f"run at\n{share}" for share in columns])
    axes.set_yticks(range(len(rows)), [_row_label(row) for row in rows])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for y, row in enumerate(rows):
        for x, share in enumerate(columns):
            if share in times[row]:
                axes.text(x, y, _cell_text(times[row][share], losses[y][x]), **_cell_style(losses[y][x]))
    bar = figure.colorbar(image, ax=axes, ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels(["fastest here", "+50%", "+100% or more"])
    axes.set_title(f"{model}: latency by the share\nit was tuned at and the share it runs at", pad=14)
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Raises StateUnusable when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise StateUnusable(f"cannot write the picture {path}: {error.strerror}") from error


def _row_label(variant: str) -> str:
    return variant if variant == "untuned" else f"tuned at {variant}"


def _cell_text(secs: float, loss: float) -> str:
    return f"{time_text(secs)}\n{'fastest' if loss == 0 else f'+{loss:.0%}'}"


def _cell_style(loss: float) -> dict[str, Any]:
    """Centred, light on the dark cells."""
    return {"ha": "center", "va": "center", "color": "white" if loss > 0.6 else "black"}
