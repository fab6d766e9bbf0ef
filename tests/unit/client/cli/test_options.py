"""Options that several commands share."""

from __future__ import annotations

import pytest

from fractune.cli.options import parse_inputs, parse_lengths, parse_part, parse_several
from fractune_core.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "part"),
    [("10%", 0.1), ("0.1", 0.1), (" 10 % ", 0.1), (".5", 0.5), ("2.5%", 0.025), ("0", 0), ("1", 1), ("100%", 1)],
)
def test_a_part_is_a_percentage_or_a_fraction(text: str, part: float) -> None:
    assert parse_part("--slack", text) == pytest.approx(part)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "--slack ''"),
        ("ten", "--slack 'ten'"),
        ("-0.1", "--slack '-0.1'"),
        ("nan", "--slack 'nan'"),
        ("%", "--slack '%'"),
        ("1e-1", "--slack '1e-1'"),
        ("10", "write 10% for a percentage"),
        ("101%", "from 0 to 100 %"),
        ("1000", "from 0 to 100 %"),
    ],
)
def test_any_other_part_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_part("--slack", text)
    assert says in str(refused.value)


def test_input_shapes_are_read() -> None:
    assert parse_inputs(["x=1,3", "scalar="]) == {"x": [1, 3], "scalar": []}
    assert parse_inputs(["x=1,3", "sr=const:16000"]) == {"x": [1, 3], "sr": "const:16000"}
    assert parse_inputs(["m=const:1", "m=1,32"]) == {"m": ([1, 32], "const:1")}
    with pytest.raises(BadRequest):
        parse_inputs(["=1"])


@pytest.mark.parametrize(("texts", "what"), [(["x=1", "x=2"], "shape"), (["x=const:1", "x=const:2"], "constant")])
def test_an_input_has_one_shape_and_one_constant(texts: list[str], what: str) -> None:
    with pytest.raises(BadRequest, match=f"--input '{texts[1]}': 'x' has a {what} already; give one"):
        parse_inputs(texts)


def test_an_axis_with_several_sizes() -> None:
    assert parse_several(["ids=1,16|64", "mask=1,16|64", "sr=const:1"]) == {
        "ids": [[1, 16], [1, 64]],
        "mask": [[1, 16], [1, 64]],
        "sr": "const:1",
    }
    assert parse_several(None) == {}
    for text in ("ids=1,16|", "ids=1,16|x", "ids=16|0"):
        with pytest.raises(BadRequest, match="--input 'ids="):
            parse_several([text])
    with pytest.raises(BadRequest, match=r"--input 'ids=1,16\|64': give one shape; tune takes several"):
        parse_inputs(["ids=1,16|64"])


def test_lengths_of_an_axis() -> None:
    assert parse_lengths(["ids:1=64,16,16", "x:0=auto"]) == {"ids:1": [16, 64], "x:0": None}
    assert parse_lengths(["auto"]) == {"": None}
    assert parse_lengths(None) == {}
    for texts, says in (
        (["ids:1"], "write INPUT:AXIS=16,64, or INPUT:AXIS=auto"),
        (["ids:1=16,x"], "write INPUT:AXIS=16,64, or INPUT:AXIS=auto"),
        (["ids:1=0"], "write INPUT:AXIS=16,64 with sizes of at least 1"),
        (["=16"], "write INPUT:AXIS=16,64 with sizes of at least 1"),
        (["ids:1=16", "ids:1=32"], "'ids:1' has sizes already; give them once"),
    ):
        with pytest.raises(BadRequest, match=says):
            parse_lengths(texts)
