"""Which arguments quantize an output, read from the blocks of a kernel."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, topi

from fractune_workers.children.tvm_api.quantizing import quantizing_roles


def placeholders() -> list[Any]:
    """Data, a vector, and three numbers."""
    vectors = [te.placeholder((4, 8), name="x"), te.placeholder((8,), name="bias")]
    return [*vectors, *(te.placeholder((1,), name=name) for name in ("scale", "limit", "step"))]


def roles(given: list[Any], made: Any) -> dict[int, list[str]]:
    function = te.create_prim_func([*given, made]).with_attr("global_symbol", "main")
    return quantizing_roles(tvm.IRModule({"main": function}))


def test_limits_scale_and_step_are_found_through_what_is_added_and_moved() -> None:
    given = placeholders()
    x, bias, scale, limit, step = given
    numbers = topi.maximum(topi.minimum(topi.round(topi.divide(topi.add(x, bias), scale)), limit), 0.0)
    made = topi.transpose(topi.add(topi.multiply(numbers, step), x))
    assert roles(given, made) == {2: ["scale"], 3: ["high"], 4: ["step"], 5: ["quantized"]}


def test_one_number_may_be_the_scale_and_the_step() -> None:
    given = placeholders()
    x, _, scale, limit, _ = given
    made = topi.multiply(topi.maximum(topi.round(topi.divide(x, scale)), limit), scale)
    assert roles(given, made) == {2: ["scale", "step"], 3: ["low"], 5: ["quantized"]}


def test_bytes_of_rounded_numbers_have_a_step_of_one() -> None:
    given = placeholders()
    assert roles(given, topi.cast(topi.clip(topi.round(given[0]), 0, 255), "uint8")) == {5: ["quantized"]}


def test_other_outputs_are_not_quantized() -> None:
    given = placeholders()
    x, bias, scale, limit, _ = given
    rounded = topi.round(topi.divide(x, scale))
    for made in (
        topi.minimum(x, limit),
        topi.exp(rounded),
        topi.multiply(rounded, bias),
        topi.sum(rounded, axis=1),
        topi.add(rounded, rounded),
    ):
        assert roles(given, made) == {}
