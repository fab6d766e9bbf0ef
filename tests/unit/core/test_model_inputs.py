"""Inputs of a model: shapes, constants, and sizes by name."""

import time
from typing import Any

import pytest

from fractune_core.errors import BadRequest
from fractune_core.files.model_files import Interface, Tensor, shapes_by_name
from fractune_core.jobs import JobSpec
from fractune_core.model_inputs import (
    MOST_SIZE,
    Formula,
    NamedSizes,
    as_shapes,
    combined_shapes,
    constants_in,
    each_shape,
    each_size,
    fitting_shape,
    parse_numbers,
    shapes_in,
)

TEXT: dict[str, Any] = {"ids": ["batch", "length"], "mask": ["batch", "length"], "table": [7]}
UNNAMED: dict[str, Any] = {"ids": [1, None], "mask": [1, "?"], "y": [None]}
DECODER: dict[str, Any] = {
    "ids": ["b", "s"],
    "mask": ["b", "past + s"],
    "cache": ["b", 4, "past", 8],
    "states": ["2*b", "past * s + 1", "past - 1"],
}
LOOSE: dict[str, Any] = {"ids": [1, "s"], "mask": [1, "total"], "cache": [1, "past"]}
RELATED = {"total": Formula.parse("past + s")}


def shapes(held: Any, given: Any, sizes: Any, relations: Any = None) -> dict[str, list[int | None]]:
    names = NamedSizes(held, relations or {})
    known = names.solved(given, sizes)
    return {name: names.shape(name, known) for name in held}


@pytest.mark.parametrize(
    ("held", "given", "sizes", "found"),
    [
        (TEXT, {}, {"length": 16, "batch": 2}, {"ids": [2, 16], "mask": [2, 16], "table": [7]}),
        (TEXT, {}, {"mask:1": 16}, {"ids": [None, 16], "mask": [None, 16], "table": [7]}),
        (TEXT, {"ids": [1, 5]}, {}, {"ids": [1, 5], "mask": [1, 5], "table": [7]}),
        (UNNAMED, {}, {"ids:1": 16}, {"ids": [1, 16], "mask": [1, 16], "y": [None]}),
        (UNNAMED, {}, {"ids:1": 16, "mask:1": 4}, {"ids": [1, 16], "mask": [1, 4], "y": [None]}),
        (UNNAMED, {"mask": [1, 4]}, {"ids:1": 16}, {"ids": [1, 16], "mask": [1, 4], "y": [None]}),
        ({"x": ["floor(h/2) + 1"]}, {}, {"floor(h/2) + 1": 3}, {"x": [3]}),
        ({"x": ["3"]}, {}, {"3": 5}, {"x": [5]}),
    ],
)
def test_axes_of_one_name_have_one_size(held: Any, given: Any, sizes: Any, found: Any) -> None:
    assert shapes(held, given, sizes) == found


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, {"b": 2, "s": 3, "past": 5}),
        ({}, {"b": 2, "s": 3, "past + s": 8}),
        ({}, {"states:0": 4, "s": 3, "states:2": 4}),
        ({"mask": [2, 8], "cache": [2, 4, 5, 8]}, {}),
        ({"states": [4, 16, 4]}, {}),
    ],
)
def test_sums_and_products_are_solved_from_any_side(given: Any, sizes: Any) -> None:
    assert shapes(DECODER, given, sizes) == {
        "ids": [2, 3],
        "mask": [2, 8],
        "cache": [2, 4, 5, 8],
        "states": [4, 16, 4],
    }


def test_what_the_graph_forces_is_solved_too() -> None:
    for sizes in ({"s": 1, "past": 16}, {"total": 17, "s": 1}, {"total": 17, "past": 16}):
        assert shapes(LOOSE, {}, sizes, RELATED) == {"ids": [1, 1], "mask": [1, 17], "cache": [1, 16]}


@pytest.mark.parametrize(
    ("held", "given", "sizes", "says"),
    [
        (TEXT, {}, {"lenght": 8}, "no open axis is named 'lenght'; the model leaves 'batch', 'length' open"),
        (TEXT, {}, {"ids:2": 8}, "no open axis is named 'ids:2'"),
        (TEXT, {}, {"table:0": 8}, "no open axis is named 'table:0'"),
        (TEXT, {}, {"length + tail": 8}, r"no open axis is named 'length \+ tail'"),
        (TEXT, {}, {"16": 16}, "no open axis is named '16'"),
        ({"x": [1]}, {}, {"n": 8}, "the model leaves no axis open"),
        (TEXT, {}, {"length": 0}, "size 'length' is 0; it must be from 1 to 2,147,483,647"),
        (TEXT, {}, {"length": MOST_SIZE + 1}, "size 'length' is 2147483648; it must be from 1"),
        (TEXT, {}, {"ids:1": 16, "mask:1": 4}, r"sizes: length \(16\) and 4 must be equal; give sizes that agree"),
        (TEXT, {"ids": [1, 16]}, {"length": 4}, r"inputs: 'ids' has 16 at axis 1: length \(4\) and 16 must be equal"),
        (DECODER, {"mask": [1, 17]}, {"past": 64, "s": 1}, r"past \+ s \(65\) and 17 must be equal, with past=64, s=1"),
        (DECODER, {"mask": [1, 17]}, {"past": 64}, r"past \+ s and 17 must be equal, with past=64: 's' would be -47"),
        (DECODER, {}, {"states:0": 3}, r"2\*b and 3 must be equal: 'b' would be no whole number"),
        (DECODER, {}, {"past": MOST_SIZE, "states:1": 2, "s": 9}, "must be equal, with past=2147483647, s=9"),
        (LOOSE, {}, {"total": 70, "past": 64, "s": 1}, r"total \(70\) and past \+ s \(65\) must be equal"),
    ],
)
def test_wrong_sizes_are_refused_in_one_line(held: Any, given: Any, sizes: Any, says: str) -> None:
    with pytest.raises(BadRequest, match=says) as refused:
        shapes(held, given, sizes, RELATED)
    assert "\n" not in str(refused.value)


def test_all_combinations_and_no_more_than_can_be_meant() -> None:
    assert each_size({"s": [1, 8], "b": 2}) == [{"s": 1, "b": 2}, {"s": 8, "b": 2}]
    assert each_size({}) == [{}]
    for sizes, says in (
        ({"s": [1, 1]}, r"size 's' has \[1, 1\]; give each number once"),
        ({"s": []}, "size 's' has no number"),
        ({"s": [1, 0]}, "size 's' is 0"),
        ({str(name): [1, 2] for name in range(40)}, "1,099,511,627,776 combinations, and 1,000 is the limit"),
    ):
        with pytest.raises(BadRequest, match=says):
            each_size(sizes)


def test_hostile_names_cost_little() -> None:
    began = time.process_time()
    chain: dict[str, Any] = {f"x{at}": [f"n{at}", f"n{at} + n{at + 1}"] for at in range(4000, 0, -1)}
    known = NamedSizes(chain).solved({f"x{at}": [1, 2] for at in (4000,)}, {"n1": 1})
    assert len(known) >= 2
    names = [chr(0x4E00 + at) for at in range(100)]
    sums: dict[str, Any] = {f"x{at}": ["+".join(names)] * 64 for at in range(25)} | {"own": names}
    assert NamedSizes(sums).solved({f"x{at}": [100] * 64 for at in range(25)}, dict.fromkeys(names, 1))
    powers: dict[str, Any] = {"x": ["*".join(["n"] * 16), "n" * 5000, "+" * 150, "n+" * 90, "*", " + "]}
    powered = NamedSizes(powers)
    with pytest.raises(BadRequest, match="must be equal, with n=") as refused:
        powered.solved({"x": [7, 1, 1, 1, 1, 1]}, {"n": MOST_SIZE})
    assert len(str(refused.value)) < 1000
    assert time.process_time() - began < 2


HELD = Interface(
    (
        Tensor("ids", "int64", ("b", "s")),
        Tensor("mask", "int64", ("b", "past + s")),
        Tensor("text", "", ("t",)),
        Tensor("sr", "int64", ("n",)),
        Tensor("fixed", "float32", (2,)),
    ),
    (),
)


def test_a_job_gets_the_shapes_of_its_open_inputs() -> None:
    given = {"ids": [1, 8], "sr=const:5": []}
    assert shapes_by_name(HELD, given, {"past": 16}) == {**given, "mask": [1, 24]}
    for inputs, sizes, says in (
        ({}, {"past": 16}, r"sizes: input 'ids' has open axes \(\[b, s\]\); give all"),
        ({"ids": [1, 8], "mask": [1, 30]}, {"past": 16}, r"past \+ s \(24\) and 30 must be equal"),
        ({}, {"b": -1}, "size 'b' is -1"),
        ({}, {"x" * 9000: 1}, "no open axis is named 'xxx"),
    ):
        with pytest.raises(BadRequest, match=says) as refused:
            shapes_by_name(HELD, inputs, sizes)
        assert len(str(refused.value)) < 1000


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
