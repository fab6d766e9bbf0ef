"""Pictures with names that look like formulas."""

from __future__ import annotations

from pathlib import Path

import pytest

from fractune.text.figure import save_figure
from tests.support.arrows.rooms import SOURCES
from tests.support.paths import REPOSITORY

pytest.importorskip("matplotlib")
NAME = r"a$\frac{$.onnx"


def test_a_name_that_looks_like_a_formula_is_drawn_as_it_is(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot([1, 10], [1, 1000], label=NAME)
    axes.set_yscale("log")
    axes.set_title(NAME)
    axes.set_ylabel(NAME)
    axes.set_xticks([1, 10], labels=[NAME, NAME])
    axes.annotate(NAME, (1, 1))
    axes.legend()
    figure.suptitle(NAME)
    save_figure(figure, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert drawn.count(f"<!-- {NAME} -->") == 7
    assert "\\mathdefault{10^{2}}" in drawn, "a power on an axis is a formula of matplotlib"


def test_all_pictures_are_saved_by_one_function() -> None:
    root = REPOSITORY / SOURCES["fractune"] / "fractune"
    found = {path.name for path in root.rglob("*.py") if ".savefig(" in path.read_text(encoding="utf-8")}
    assert found == {"figure.py"}
