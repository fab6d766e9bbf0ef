from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune.text.toml_table import Value, toml_lines
from fractune_core.errors import BadRequest

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
