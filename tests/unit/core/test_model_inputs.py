"""Inputs of a job: shapes, and constants in the same mapping."""

from typing import Any

import pytest

from fractune_core.errors import BadRequest
from fractune_core.jobs import JobSpec
from fractune_core.model_inputs import (
    as_shapes,
    combined_shapes,
    constants_in,
    each_shape,
    fitting_shape,
    parse_numbers,
    shapes_in,
)


def test_a_constant_goes_where_shapes_go_and_may_have_one() -> None:
    inputs = JobSpec.requested("m.onnx", "cpu:1", inputs={"x": (1, 3), "sr": "const:16000"}).inputs
    assert inputs == {"x": [1, 3], "sr=const:16000": []}
    assert shapes_in(inputs) == {"x": [1, 3]}
    assert constants_in(inputs) == {"sr": "16000"}
    inputs = as_shapes({"mask": ((1, 32), "const:1"), "x": (1, 3)})
    assert inputs == {"mask": [1, 32], "mask=const:1": [], "x": [1, 3]}
    assert shapes_in(inputs) == {"mask": [1, 32], "x": [1, 3]}
    assert constants_in(inputs) == {"mask": "1"}


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"sr": "const:1", "sr=const:2": []}, "'sr' is given twice"),
        ({"sr": "16000"}, "'sr' is '16000'; write a list of sizes, or const:16000"),
        ({"sr": "const:"}, "'sr' is 'const:'; write a list of sizes, or const:16000"),
        ({"sr": "const: "}, "'sr' is 'const: '; write a list of sizes, or const:16000"),
        ({"ids": [[1, 16], [1, 64]]}, r"2 shapes for an input; give one \(tune takes several\)"),
        ({"ids": ([[1, 16], [1, 64]], "const:1")}, "a constant with several shapes; give it one"),
    ],
)
def test_inputs_that_cannot_be_meant_are_refused(inputs: Any, says: str) -> None:
    with pytest.raises(BadRequest, match=f"inputs: {says}"):
        as_shapes(inputs)


@pytest.mark.parametrize("size", [2**63, 2**80])
def test_a_size_that_no_message_holds_is_refused(size: int) -> None:
    with pytest.raises(BadRequest, match="inputs: 'x' has a size above 9,223,372,036,854,775,807"):
        JobSpec.requested("m.onnx", "cpu:1", inputs={"x": (size, 1)})


@pytest.mark.parametrize(
    ("text", "dtype", "numbers"),
    [
        ("16000", "int64", [16000]),
        ("1, -2", "int8", [1, -2]),
        ("0.5,1e3", "float32", [0.5, 1000.0]),
        ("true", "bool", [1]),
    ],
)
def test_numbers_of_each_kind(text: str, dtype: str, numbers: list[float]) -> None:
    assert parse_numbers("x", text, dtype) == numbers


@pytest.mark.parametrize(
    ("text", "dtype", "message"),
    [
        ("1.5", "int64", "'1.5' is not a number of type int64"),
        ("300", "uint8", "300 does not fit into uint8, which has 0 to 255"),
        ("1,,2", "float32", "'' is not a number of type float32"),
        ("maybe", "bool", "'maybe' is not a number of type bool"),
    ],
)
def test_a_wrong_number_is_named(text: str, dtype: str, message: str) -> None:
    with pytest.raises(BadRequest, match=f"input 'x': {message}"):
        parse_numbers("x", text, dtype)


def test_the_shape_of_a_constant() -> None:
    assert fitting_shape("x", 1, []) == []
    assert fitting_shape("x", 6, [2, 3]) == [2, 3]
    assert fitting_shape("x", 4, [None]) == [4]
    with pytest.raises(BadRequest, match=r"has the shape \[2, 3\], and 4 numbers are given; give 1 or 6"):
        fitting_shape("x", 4, [2, 3])
    for dims in ([None], [2, None]):
        with pytest.raises(BadRequest, match="'x' is a constant with open dimensions; give its shape too, as --input"):
            fitting_shape("x", 1, dims)


def test_the_nth_shapes_of_the_inputs_go_together() -> None:
    assert each_shape({"ids": [[1, 16], [1, 64]], "mask": [(1, 16), (1, 64)], "x": [3], "sr": "const:1"}) == [
        {"ids": [1, 16], "mask": (1, 16), "x": [3], "sr": "const:1"},
        {"ids": [1, 64], "mask": (1, 64), "x": [3], "sr": "const:1"},
    ]
    assert each_shape({"x": [1, 3]}) == [{"x": [1, 3]}]
    assert each_shape({}) == [{}]
    with pytest.raises(BadRequest, match=r"inputs have different numbers of shapes \(ids 2, mask 1\); give as many"):
        each_shape({"ids": [[1, 16], [1, 64]], "mask": [[1, 16]]})


@pytest.mark.parametrize(
    ("axes", "shapes"),
    [
        (
            {"ids": [(1,), (16, 64)], "mask": [(1,), (16, 64)], "x": [(3,)], "scalar": []},
            {"ids": [[1, 16], [1, 64]], "mask": [[1, 16], [1, 64]], "x": [3], "scalar": []},
        ),
        (
            {"ids": [(1, 8), (16, 64)], "lengths": [(1, 8)]},
            {"ids": [[1, 16], [1, 64], [8, 16], [8, 64]], "lengths": [[1], [1], [8], [8]]},
        ),
        ({"ids": [(16, 64)], "twice": [(32, 128)]}, {"ids": [[16], [64]], "twice": [[32], [128]]}),
        ({"x": [(1, 2), (1, 2)]}, {"x": [[1, 1], [1, 2], [2, 1], [2, 2]]}),
    ],
)
def test_axes_of_several_sizes_are_combined(
    axes: dict[str, list[tuple[int, ...]]], shapes: dict[str, list[int] | list[list[int]]]
) -> None:
    assert combined_shapes(axes) == shapes


def test_a_size_is_given_once() -> None:
    with pytest.raises(BadRequest, match=r"input 'ids': axis 1 has a size twice \(16\|16\)"):
        combined_shapes({"ids": [(1,), (16, 16)]})
