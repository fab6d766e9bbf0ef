"""Tolerances of half precision, on kernels in NumPy that round as processors do: right ones, and wrong ones."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm

from fractune_core.shares import Share
from fractune_workers.children.measuring.child import MeasurerChild
from fractune_workers.children.measuring.compiled_software import cpu_software
from fractune_workers.children.measuring.quantized_outputs import allowed
from fractune_workers.children.measuring.setup import cpu_setup
from fractune_workers.children.tvm_api.arrays import difference, random_args
from fractune_workers.children.tvm_api.compiled import build_object
from fractune_workers.children.tvm_api.processor import cpu_processor
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.confinement import confinement_for

Array = npt.NDArray[Any]
Rounding = Callable[[Array], Array]
SIZE = 96
LOST = 16
"""terms of a sum: a step of a tensor core"""
DEPTHS = [1152, 2304, 4608]


def described(depth: int, dtype: str = "float16") -> list[list[Any]]:
    return [
        ["TENSOR", dtype, [SIZE, depth], [], ["operand"]],
        ["TENSOR", dtype, [depth, SIZE], [], ["operand"]],
        ["TENSOR", dtype, [SIZE, SIZE], [], [], [dtype]],
    ]


def operands(args: Sequence[Sequence[Any]]) -> tuple[Array, Array]:
    left, right, _ = (each.numpy() for each in random_args(list(args), 3, cpu_processor()))
    return left, right


def in_float32(left: Array, right: Array) -> Array:
    product: Array = left.astype("float32") @ right.astype("float32")
    return product.astype(left.dtype)


def nearest(sums: Array) -> Array:
    return sums.astype("float16")


def truncated(sums: Array) -> Array:
    near = sums.astype("float16")
    is_beyond = np.abs(near.astype("float64")) > np.abs(sums)
    return np.where(is_beyond, np.nextafter(near, np.float16(0)), near).astype("float16")


def on_tensor_cores(left: Array, right: Array, rounded: Rounding = nearest, step: int = LOST) -> Array:
    """Sums in half precision: each step adds an exact product of `step` terms and rounds once."""
    sums = np.zeros((SIZE, SIZE), "float16")
    for at in range(0, left.shape[1], step):
        part = left[:, at : at + step].astype("float64") @ right[at : at + step].astype("float64")
        sums = rounded(sums.astype("float64") + part)
    return sums


def one_by_one(left: Array, right: Array) -> Array:
    return on_tensor_cores(left, right, step=1)


def without_a_part(left: Array, right: Array) -> Array:
    return in_float32(left[:, LOST:], right[LOST:])


def with_the_next_part_twice(left: Array, right: Array) -> Array:
    left = left.copy()
    left[:, :LOST] = left[:, LOST : 2 * LOST]
    return in_float32(left, right)


def over_allowed(kernel: Callable[[Array, Array], Array], args: Sequence[Sequence[Any]]) -> float:
    """The kernel's difference to the reference, in parts of what is allowed."""
    left, right = operands(args)
    reference = in_float32(left, right)
    return difference(kernel(left, right), reference) / allowed(args)


@pytest.mark.parametrize("depth", DEPTHS)
def test_right_kernels_are_far_within_what_is_allowed(depth: int) -> None:
    assert over_allowed(in_float32, described(depth)) == 0.0
    assert over_allowed(lambda left, right: in_float32(left + np.float16(2**-14), right), described(depth)) < 0.3


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kernel", [without_a_part, with_the_next_part_twice])
def test_a_kernel_that_loses_one_part_is_far_beyond_it(kernel: Callable[[Array, Array], Array], depth: int) -> None:
    assert over_allowed(kernel, described(depth)) > 2


@pytest.mark.parametrize("depth", DEPTHS)
def test_sums_that_are_truncated_in_half_precision_are_refused(depth: int) -> None:
    assert over_allowed(lambda left, right: on_tensor_cores(left, right, truncated), described(depth)) > 1


@pytest.mark.parametrize("depth", DEPTHS)
def test_sums_one_by_one_in_half_precision_are_refused(depth: int) -> None:
    assert over_allowed(one_by_one, described(depth)) > 1


def in_tf32(left: Array, right: Array) -> Array:
    """As tensor cores read float32: without its last 13 bits."""
    short = [(each.view("uint32") & np.uint32(0xFFFFE000)).view("float32") for each in (left, right)]
    return in_float32(*short)


@pytest.mark.parametrize("depth", [8, *DEPTHS])
def test_products_in_tf32_are_told_from_one_that_loses_a_part(depth: int) -> None:
    args = described(depth, "float32")
    args[-1][-1] = ["tf32"]
    assert 0.2 < over_allowed(in_tf32, args) < 0.8
    assert depth < LOST or over_allowed(without_a_part, args) > 4


def test_bfloat16_tells_a_lost_part_of_shorter_sums() -> None:
    assert over_allowed(in_float32, described(1152, "bfloat16")) == 0.0
    assert over_allowed(without_a_part, described(1152, "bfloat16")) > 1


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float32", 1e-3), ("float64", 1e-6), ("int8", 0.0), ("int32", 0.0), ("uint8", 0.0)]
)
def test_other_types_have_a_fixed_one(dtype: str, expected: float) -> None:
    assert allowed([["TENSOR", dtype, [4]]]) == expected
    assert allowed([["TENSOR", dtype, [4], [], ["quantized"]]]) == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_may_be_off_by_a_few_roundings(dtype: str) -> None:
    roundoff = {"float16": 2**-11, "bfloat16": 2**-8}[dtype]
    assert allowed([["TENSOR", dtype, [4], [], [], [dtype]]]) == pytest.approx(12 * roundoff)


SATURATED = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
    T.func_attr({{"global_symbol": "main"}})
    for at in range(16):
        y[at] = {value}
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("T.min(x[at] + T.float32(1), T.float32(1))", "T.float32(1)"), ("T.log(x[at] - T.float32(1))", "T.float32(-1)")],
    ids=["the same everywhere", "NaN"],
)
def test_a_kernel_is_not_proved_by_blank_outputs(right: str, wrong: str) -> None:
    """For positive numbers below 1, these kernels have outputs that say nothing."""
    target = parse_target("llvm -mcpu=x86-64-v3", 1)
    confinement = confinement_for(Share.parse("none"), sorted(os.sched_getaffinity(0)))
    child = MeasurerChild(confinement, cpu_setup(cpu_software()))
    child.begin([["TENSOR", "float32", [16]]] * 2, 0)
    for name, value in {"right": right, "same": right, "wrong": wrong}.items():
        mod = tvm.IRModule({"main": tvm.script.from_source(SATURATED.format(value=value))})
        child.load(name, build_object(mod, target))
    assert [child.check(name)["max_error"] for name in ("right", "same")] == [0.0, 0.0]
    assert child.check("wrong")["max_error"] > 0.1
