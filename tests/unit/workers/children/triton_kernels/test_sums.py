"""Which operators Triton's kernels compute. Triton itself is not needed."""

from typing import Any

import pytest
import tvm
from tvm import te, topi

from fractune_workers.children.triton_kernels.decisions import Decisions
from fractune_workers.children.triton_kernels.sources import (
    decisions_in,
    is_fit,
    is_marked,
    source_of,
    with_decisions,
    with_marks,
)
from fractune_workers.children.triton_kernels.sums import Unfit, sums_of
from fractune_workers.children.tvm_api.traces import Workload

GROUPS = ("batch", "row", "column", "depth")


def function(make: Any, *shapes: tuple[int, ...], dtype: str = "float16") -> Any:
    inputs = [te.placeholder(shape, dtype, name=f"x{at}") for at, shape in enumerate(shapes)]
    return te.create_prim_func([*inputs, make(*inputs)])


def product(*shapes: tuple[int, ...], dtype: str = "float16") -> Any:
    return function(topi.matmul if len(shapes[0]) == 2 else topi.nn.batch_matmul, *shapes, dtype=dtype)


def truncated_product(a: Any, b: Any) -> Any:
    """Fractions are cut off before the numbers are multiplied."""
    k = te.reduce_axis((0, a.shape[1]), name="k")
    shape = (a.shape[0], b.shape[1])
    return te.compute(shape, lambda i, j: te.sum(a[i, k].astype("int8").astype("float32") * b[k, j], axis=k))


def extents(found: Any) -> dict[str, int]:
    sums = sums_of(found)
    return {group: sums.extent(group) for group in GROUPS}


def test_axes_are_batches_rows_columns_and_depth() -> None:
    assert extents(product((3, 5), (5, 7))) == {"batch": 1, "row": 3, "column": 7, "depth": 5}
    batches = function(lambda a, b: topi.nn.batch_matmul(a, b, transpose_b=True), (2, 3, 5), (2, 7, 5))
    assert extents(batches) == {"batch": 2, "row": 3, "column": 7, "depth": 5}
    image = function(lambda x, w: topi.nn.conv2d_nhwc(x, w, 2, 1, 1), (1, 8, 8, 6), (3, 3, 6, 9))
    assert extents(image) == {"batch": 1, "row": 16, "column": 9, "depth": 54}


def test_the_innermost_axis_of_the_output_is_a_column() -> None:
    k = te.reduce_axis((0, 5), name="k")
    turned = function(lambda a, b: te.compute((7, 3), lambda j, i: te.sum(a[i, k] * b[k, j], axis=k)), (3, 5), (5, 7))
    sums = sums_of(turned)
    assert [each.argument for each in sums.factors] == [1, 0]
    assert extents(turned)["column"] == 3


@pytest.mark.parametrize(
    "other",
    [
        function(topi.nn.relu, (4, 4)),
        function(lambda a: topi.argmax(a, axis=1), (4, 4)),
        function(lambda x: topi.nn.pool2d(x, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "max"), (1, 2, 4, 4)),
        function(lambda a: topi.sum(a, axis=1), (4, 4)),
        function(lambda a, b: topi.nn.softmax(topi.matmul(a, b)), (4, 4), (4, 4)),
        function(lambda a, b: topi.matmul(topi.exp(a), b), (4, 4), (4, 4)),
        function(lambda a, b: topi.transpose(topi.reshape(topi.matmul(a, b), (2, 8))), (4, 4), (4, 4)),
        function(lambda a, b: topi.power(topi.matmul(a, b), topi.matmul(a, b)), (4, 4), (4, 4)),
        function(lambda a, b: topi.acos(topi.matmul(a, b)), (4, 4), (4, 4)),
        function(lambda x, w: topi.nn.depthwise_conv2d_nhwc(x, w, 1, 1, 1), (1, 8, 8, 6), (3, 3, 6, 1)),
        product((4, 4), (4, 4), dtype="float64"),
        product((4, 4), (4, 4), dtype="uint8"),
        product((4, 4), (4, 4), dtype="int8"),
        function(lambda a, b: topi.nn.matmul(a, b, out_dtype="float64"), (4, 4), (4, 4), dtype="float32"),
        function(truncated_product, (4, 4), (4, 4), dtype="float32"),
        function(lambda a, b, c: topi.add(topi.matmul(a, b), c), (4, 4), (4, 4), (3, 4, 4)),
        function(lambda a, b, c: topi.add(topi.matmul(a, b), c), (1, 4), (4, 4), (3, 4)),
    ],
    ids=[
        "relu",
        "argmax",
        "pool",
        "sum",
        "softmax",
        "computed factor",
        "reshape",
        "two sums",
        "acos",
        "depthwise",
        "float64",
        "uint8",
        "int8 that wraps",
        "sums in float64",
        "cast that cuts off",
        "added to several",
        "row added to several rows",
    ],
)
def test_other_operators_do_not_fit(other: Any) -> None:
    assert not is_fit(other)


def test_padding_becomes_a_condition_of_the_load() -> None:
    image = function(lambda x, w: topi.nn.conv2d_nhwc(x, w, 1, 1, 1), (1, 8, 8, 16), (3, 3, 16, 9))
    text = source_of(sums_of(image), Decisions(16, 16, 16, 4, 3), "kernel", "ieee").text
    assert text.count(" >= 0)") == 4, "above, below, left and right of the image"
    point = function(lambda x, w: topi.nn.conv2d_nhwc(x, w, 1, 0, 1), (1, 8, 8, 16), (1, 1, 16, 9))
    assert " >= 0)" not in source_of(sums_of(point), Decisions(16, 16, 16, 4, 3), "kernel", "ieee").text


def test_decisions_for_an_operator_that_no_longer_fits_fail_with_a_reason() -> None:
    larger = function(lambda a, b, c: topi.add(topi.matmul(a, b), c), (4, 4), (4, 4), (3, 4, 4))
    with pytest.raises(Unfit, match="do not compute this operator"):
        source_of(sums_of(larger), Decisions(16, 16, 16, 4, 3), "kernel", "ieee")


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
def test_numbers_without_digits_are_written_as_python_reads_them(number: str) -> None:
    def masked(a: Any, b: Any) -> Any:
        x = topi.matmul(a, b)
        other = tvm.tirx.const(float(number), "float32")
        return te.compute(x.shape, lambda i, j: te.if_then_else(x[i, j] > 0, x[i, j], other))

    text = source_of(
        sums_of(function(masked, (4, 4), (4, 4), dtype="float32")), Decisions(16, 16, 16, 4, 3), "kernel", "ieee"
    ).text
    assert f'float("{number}")' in text


def test_decisions_are_for_the_marked_function_that_they_belong_to() -> None:
    names = ("wide", "narrow", "relu")
    functions = (product((8, 8), (8, 32)), product((8, 8), (8, 4)), function(topi.nn.relu, (8, 8)))
    marked = with_marks(tvm.IRModule(dict(zip(names, functions, strict=True))))
    assert [is_marked(marked[name]) for name in names] == [True, True, False]
    workload = Workload.of(tvm.IRModule({"main": marked["wide"].with_attr("global_symbol", "main")}))
    decided = with_decisions(marked, {workload: "[]"})
    assert [decisions_in(decided[name]) for name in names] == ["[]", "", ""]
    assert bool(decided["wide"].attrs["tirx.is_scheduled"])
