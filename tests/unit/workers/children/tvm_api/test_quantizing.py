"""Which arguments quantize an output, and half precision in workloads."""

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi

from fractune_workers.children.tvm_api.arrays import REFERENCE, random_args
from fractune_workers.children.tvm_api.artifacts import load_objects
from fractune_workers.children.tvm_api.compiled import written
from fractune_workers.children.tvm_api.processor import cpu_processor
from fractune_workers.children.tvm_api.quantizing import operands, quantizing_roles, rounded_to, with_reference
from fractune_workers.children.tvm_api.target import default_target
from fractune_workers.children.tvm_api.traces import Workload, args_of
from tests.support.unoptimized import unoptimized


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


HALF = ["float16", "bfloat16"]


def operator(*tensors: Any) -> Workload:
    return Workload.of(tvm.IRModule({"main": te.create_prim_func(list(tensors))}))


def product(dtype: str, out_dtype: str = "") -> Workload:
    left, right = te.placeholder((8, 24), dtype, "left"), te.placeholder((24, 8), dtype, "right")
    return operator(left, right, topi.nn.matmul(left, right, out_dtype=out_dtype or dtype))


def padded_convolution(dtype: str) -> Workload:
    """With a bias and a ReLU behind it."""
    image, weights = te.placeholder((1, 6, 6, 8), dtype, "image"), te.placeholder((3, 3, 8, 4), dtype, "weights")
    bias = te.placeholder((4,), dtype, "bias")
    made = topi.nn.conv2d_nhwc(image, weights, 1, 1, 1, out_dtype=dtype)
    return operator(image, weights, bias, topi.nn.relu(topi.add(made, bias)))


def scaled(dtype: str) -> Workload:
    """Divided by a root, which of a negative number is none."""
    values, variance = te.placeholder((8, 4), dtype, "values"), te.placeholder((4,), dtype, "variance")
    return operator(values, variance, topi.divide(values, topi.sqrt(variance)))


@pytest.mark.parametrize("dtype", HALF)
def test_a_product_is_described_by_its_operands_and_its_type(dtype: str) -> None:
    assert args_of(product(dtype)) == [
        ["TENSOR", dtype, [8, 24], [], ["operand"]],
        ["TENSOR", dtype, [24, 8], [], ["operand"]],
        ["TENSOR", dtype, [8, 8], [], [], [dtype]],
    ]


@pytest.mark.parametrize("dtype", HALF)
def test_operands_are_found_behind_padding_and_the_rest_stays_positive(dtype: str) -> None:
    convolution = padded_convolution(dtype)
    assert operands(convolution.mod) == {0: ["operand"], 1: ["operand"]}
    assert rounded_to(convolution.mod) == [dtype]
    image, weights, bias, _ = (each.numpy() for each in random_args(args_of(convolution), 1, cpu_processor()))
    for each in (image, weights):
        assert abs(each.astype("float32").mean()) < 0.3
        assert 0.8 < each.astype("float32").std() < 1.2
    assert bias.min() > 0
    assert operands(scaled(dtype).mod) == {}
    assert rounded_to(scaled(dtype).mod) == [dtype]


@pytest.mark.parametrize(("dtype", "out"), [("float32", "float32"), ("int8", "int32"), ("float64", "float64")])
def test_other_types_are_described_as_before(dtype: str, out: str) -> None:
    found = product(dtype, out)
    assert args_of(found) == [["TENSOR", dtype, [8, 24]], ["TENSOR", dtype, [24, 8]], ["TENSOR", out, [8, 8]]]
    assert with_reference(found.mod) is found.mod


def test_operands_in_float32_are_described_where_tf32_is_allowed() -> None:
    found = product("float32")
    assert args_of(found, tf32=True) == [
        ["TENSOR", "float32", [8, 24], [], ["operand"]],
        ["TENSOR", "float32", [24, 8], [], ["operand"]],
        ["TENSOR", "float32", [8, 8], [], [], ["tf32"]],
    ]
    assert with_reference(found.mod) is found.mod


@pytest.mark.parametrize(
    "found", [product("int8", "int32"), product("float16", "float32"), product("float16"), scaled("float32")]
)
def test_tf32_changes_nothing_but_products_in_float32(found: Workload) -> None:
    assert args_of(found, tf32=True) == args_of(found)


def test_sums_in_float32_need_no_other_reference() -> None:
    assert rounded_to(product("float16", "float32").mod) == []
    assert rounded_to(product("float16", "int32").mod) == []


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("make", [product, padded_convolution, scaled])
def test_the_reference_computes_the_same_in_float32(make: Any, dtype: str) -> None:
    workload = make(dtype)
    built = tvm.tirx.build(with_reference(workload.mod), target=unoptimized(default_target(1)))
    library = load_objects([written(built)])
    args = random_args(args_of(workload), 1, cpu_processor())
    wide = [tvm.runtime.tensor(each.numpy().astype("float32")) for each in args]
    library["main"](*args)
    library[REFERENCE](*wide)
    rounded, exact = args[-1].numpy().astype("float32"), wide[-1].numpy()
    roundoff = {"float16": 2**-11, "bfloat16": 2**-8}[dtype]
    assert 0 < np.abs(rounded - exact).max() < 40 * roundoff * np.abs(exact).max()
