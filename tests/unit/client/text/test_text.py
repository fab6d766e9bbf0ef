"""Numbers as people read them."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fractune.text.rendering import save_figure
from fractune.text.text import counts_text, ratio_text, roof_notes, slowdown_text, span_text, time_text
from fractune.text.toml_table import Value, toml_lines
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import BadRequest
from tests.support.arrows.rooms import SOURCES
from tests.support.paths import REPOSITORY


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (None, "-"),
        (0.0, "-"),
        (float("inf"), "-"),
        (8.1e-9, "8.10 ns"),
        (1.234e-5, "12.3 us"),
        (4.5e-3, "4.50 ms"),
        (0.01, "10.0 ms"),
        (0.27, "270 ms"),
        (0.9996, "1000 ms"),
        (2.0, "2.00 s"),
    ],
)
def test_times_are_written_with_a_fitting_unit(secs: float | None, text: str) -> None:
    assert time_text(secs) == text


def test_spans_ratios_and_counts() -> None:
    assert [span_text(42.4), span_text(185)] == ["42 s", "3 min 05 s"]
    assert [ratio_text(3.0, 2.0), ratio_text(None, 2.0), ratio_text(1.0, 0.0)] == ["1.50x", "-", "-"]
    assert [counts_text({"b": 2, "a": 1}), counts_text({})] == ["a 1, b 2", "none"]


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (None, "-"),
        (Estimate(1.4, 1.35, 1.5), "1.40 (1.35 .. 1.50)"),
        (Estimate(0.55, 0.5, 0.625), "speed-up 1.82x (1.60 .. 2.00)"),
        (Estimate(0.98, 0.95, 1.02), "0.98 (0.95 .. 1.02)"),
    ],
)
def test_a_slow_down_below_one_is_a_speed_up_unless_it_is_noise(factor: Estimate | None, text: str) -> None:
    assert slowdown_text(factor) == text


@pytest.mark.parametrize(
    ("parts", "said"),
    [((), ""), ((None, 0.5), ""), ((1.2, None), "More than 100 %"), ((None, None), "No part of a roof is known")],
)
def test_an_unusual_column_of_roof_parts_has_a_note(parts: tuple[float | None, ...], said: str) -> None:
    notes = roof_notes(parts, "core", has_roof=True)
    assert "".join(notes).startswith(said)
    assert bool(notes) is bool(said)


TEXT = st.text()
NUMBER = st.integers(-(2**63), 2**63 - 1) | st.floats()


@given(
    st.dictionaries(
        st.sampled_from(["a", "name", "one-name", "name-of-three"]),
        TEXT | st.booleans() | NUMBER | st.lists(TEXT, max_size=4),
    )
)
def test_toml_reads_back_what_was_written(values: dict[str, Value]) -> None:
    assert repr(tomllib.loads(toml_lines(values))) == repr(values)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("\U0001f600", '"\U0001f600"'),
        ("a\x7fb\n", r'"a\u007fb\n"'),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        (True, "true"),
        (["a", '"'], r'["a", "\""]'),
    ],
)
def test_text_is_toml_and_not_json(value: Value, text: str) -> None:
    assert toml_lines({"key": value}) == f"key = {text}\n"


def test_half_a_character_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"file: TOML cannot hold 'm\\udcff.onnx'"):
        toml_lines({"trials": 3, "file": "m\udcff.onnx"})


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
    assert found == {"rendering.py"}
