"""Products of quantized values: recognised in each form, and computed in whole numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir

from fractune_core.operators import INT8, INT16
from fractune_core.tir.canonical import MATMUL, WHOLE_NUMBERS
from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.layouts.quantized import Columns, in_bytes, quantized_columns
from fractune_workers.children.tvm_api.arrays import random_args
from fractune_workers.children.tvm_api.intrinsics import load_intrinsics
from fractune_workers.children.tvm_api.processor import cpu_processor
from fractune_workers.children.tvm_api.traces import args_of, read_workload
from tests.unit.workers.children.layouts.networks import Network, calls, network, outputs

Array = npt.NDArray[Any]
op = relax.op
RNG = np.random.default_rng(3)
NARROW = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2})
"""4 lanes, and no instruction for products of whole numbers"""
AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
VNNI = tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake", "num-cores": 2})
STEP = 0.05


def one(number: float) -> Any:
    return relax.const(np.array([number], "float32"))


def clipped(net: Network, x: Any, low: int, high: int, zero: int) -> Any:
    """Rounded and clipped, and less the zero point."""
    counted = net.emit(op.round(net.emit(op.divide(x, one(STEP)))))
    if zero:
        counted = net.emit(op.add(counted, one(zero)))
    within = net.emit(op.clip(counted, low, high))
    return net.emit(op.subtract(within, one(zero))) if zero else within


def within_limits(net: Network, x: Any, low: int, high: int, zero: int) -> Any:
    """The limits themselves without the zero point."""
    counted = net.emit(op.round(net.emit(op.divide(x, one(STEP)))))
    return net.emit(op.maximum(net.emit(op.minimum(counted, one(high - zero))), one(low - zero)))


def activation(x: Array, low: int, high: int, zero: int) -> Array:
    step = np.float32(STEP)
    found: Array = (np.clip(np.round(x / step) + zero, low, high) - zero) * step
    return found


def weights(depth: int, columns: int, bounds: tuple[int, int] = (-128, 127)) -> tuple[Array, Array]:
    """Whole numbers, and a step for each column."""
    numbers = RNG.integers(bounds[0], bounds[1] + 1, (depth, columns))
    return numbers, RNG.uniform(1e-3, 1e-1, columns).astype("float32")


def product(form: Callable[..., Any], columns: Array, low: int, high: int, zero: int) -> Callable[[Network, Any], Any]:
    def body(net: Network, x: Any) -> Any:
        value = net.emit(op.multiply(form(net, x, low, high, zero), one(STEP)))
        made = net.emit(op.matmul(value, relax.const(columns)))
        return net.emit(op.add(made, relax.const(np.linspace(-1, 1, columns.shape[1], dtype="float32"))))

    return body


def annotated(mod: Any) -> list[list[int]]:
    """The bounds of every direct kernel of whole numbers."""
    blocks: list[Any] = []
    for function in mod.functions.values():
        if isinstance(function, tvm.tirx.PrimFunc):
            tvm_ffi.structural_walk(function.body, (s_tir.SBlock, blocks.append))
    kernels = (block for block in blocks if WHOLE_NUMBERS in block.annotations)
    return [[int(number) for number in kernel.annotations[WHOLE_NUMBERS]] for kernel in kernels]


def names(mod: Any) -> list[str]:
    """Of the calls, without TVM's numbers."""
    return [each.rstrip("0123456789") for each in calls(mod)]


@pytest.mark.parametrize("form", [clipped, within_limits])
@pytest.mark.parametrize(
    ("low", "high", "zero"),
    [
        pytest.param(0, 255, 0, id="uint8"),
        pytest.param(0, 255, 28, id="uint8, zero point"),
        pytest.param(-128, 127, 0, id="int8"),
        pytest.param(-128, 127, -5, id="int8, zero point"),
    ],
)
@pytest.mark.parametrize(("shape", "columns"), [((6, 10), 16), ((1, 5, 7), 18)], ids=["whole blocks", "odd"])
def test_a_quantized_product_is_one_of_whole_numbers(
    form: Callable[..., Any], low: int, high: int, zero: int, shape: tuple[int, ...], columns: int
) -> None:
    numbers, steps = weights(shape[-1], columns)
    floats = (numbers * steps).astype("float32")
    mod = network([shape], product(form, floats, low, high, zero))
    x = RNG.normal(0, 5, shape).astype("float32")
    bias = np.linspace(-1, 1, columns, dtype="float32")
    expected = activation(x, low, high, zero).astype("float64") @ floats + bias
    direct = prepare(mod, NARROW)
    assert annotated(direct) == [[0, 255, -128, 127]]
    np.testing.assert_allclose(outputs(direct, NARROW, [x]), expected, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("name", "target"), [(INT16, AVX2), (INT8, VNNI)])
def test_each_implementation_makes_the_same_calls(name: str, target: Any) -> None:
    numbers, steps = weights(12, 32)
    mod = network([(6, 12)], product(clipped, (numbers * steps).astype("float32"), 0, 255, 7))
    direct, other = prepare(mod, target), prepare(mod, target, name)
    assert names(direct) == names(other)
    assert annotated(direct)
    assert not annotated(other)
    (kernel,) = (each for each in calls(other) if "matmul" in each)
    assert "add" in kernel


@pytest.mark.parametrize(
    ("name", "target", "bounds"),
    [
        pytest.param(INT8, AVX2, (-128, 127), id="bytes without an instruction for them"),
        pytest.param(INT16, VNNI, (-128, 127), id="pairs where bytes are faster"),
        pytest.param(INT8, VNNI, (-200, 100), id="weights that are no signed bytes"),
    ],
)
def test_what_an_implementation_does_not_fit_is_computed_directly(
    name: str, target: Any, bounds: tuple[int, int]
) -> None:
    numbers, steps = weights(12, 32, bounds)
    mod = network([(6, 12)], product(clipped, (numbers * steps).astype("float32"), 0, 255, 7))
    tvm.ir.assert_structural_equal(prepare(mod, target, name), prepare(mod, target))


def integers(numbers: Array, zero_of_weights: Any, dtype: str) -> Callable[..., Any]:
    """As MatMulInteger comes: bytes and a zero point that is computed, and a scale after the product."""

    def body(net: Network, x: Any, zero: Any, scale: Any) -> Any:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        data = net.emit(op.astype(net.emit(op.clip(net.emit(op.round(x)), int(low), int(high))), dtype))
        point = net.emit(op.astype(net.emit(op.astype(zero, dtype)), "int32"))
        left = net.emit(op.subtract(net.emit(op.astype(data, "int32")), point))
        right = net.emit(op.astype(relax.const(numbers), "int32"))
        if zero_of_weights is not None:
            right = net.emit(op.subtract(right, relax.const(np.array(zero_of_weights, "int32"))))
        made = net.emit(op.astype(net.emit(op.matmul(left, right)), "float32"))
        return net.emit(op.multiply(made, scale))

    return body


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("zero_of_weights", [None, 103])
@pytest.mark.parametrize("columns", [16, 18])
def test_an_integer_product_is_exact(dtype: str, zero_of_weights: int | None, columns: int) -> None:
    kind = "int8" if zero_of_weights is None else "uint8"
    limits = np.iinfo(kind)
    numbers = RNG.integers(limits.min, limits.max + 1, (9, columns)).astype(kind)
    mod = network([(5, 9), (), (columns,)], integers(numbers, zero_of_weights, dtype))
    low = int(np.iinfo(dtype).min)
    x = RNG.integers(low, low + 256, (5, 9)).astype("float32")
    zero, scale = np.array(low + 11, "float32"), RNG.uniform(0.5, 2, columns).astype("float32")
    whole = (x.astype(int) - int(zero)) @ (numbers.astype(int) - (zero_of_weights or 0))
    direct = prepare(mod, NARROW)
    assert annotated(direct) == [[0, 255, *((-128, 127) if zero_of_weights is None else (-255, 255))]]
    np.testing.assert_array_equal(outputs(direct, NARROW, [x, zero, scale]), whole.astype("float32") * scale)
    fused = [each for each in calls(direct) if "matmul" in each]
    assert len(fused) == 1
    assert "multiply" in fused[0]


@pytest.mark.parametrize("zero_of_weights", [103, 160])
@pytest.mark.parametrize("columns", [16, 18])
def test_weights_that_leave_a_byte_by_their_zero_point_are_moved_into_it(columns: int, zero_of_weights: int) -> None:
    numbers = RNG.integers(0, 256, (9, columns)).astype("uint8")
    mod = network([(5, 9), (), (columns,)], integers(numbers, zero_of_weights, "uint8"))
    x = RNG.integers(0, 256, (5, 9)).astype("float32")
    zero, scale = np.array(11, "float32"), RNG.uniform(0.5, 2, columns).astype("float32")
    whole = (x.astype(int) - int(zero)) @ (numbers.astype(int) - zero_of_weights)
    direct = prepare(mod, VNNI)
    assert annotated(direct) == [[0, 255, -128, 127]]
    np.testing.assert_array_equal(outputs(direct, NARROW, [x, zero, scale]), whole.astype("float32") * scale)


def test_weights_of_a_wider_range_are_not_moved() -> None:
    columns = np.array([[-130.0], [126.0]], "float32")
    assert in_bytes(Columns(columns, np.ones(1, "float32"))) is None


def test_a_batched_integer_product_is_exact() -> None:
    numbers = RNG.integers(-128, 128, (16, 8, 16)).astype("int32")

    def body(net: Network, x: Any) -> Any:
        data = net.emit(op.astype(net.emit(op.clip(net.emit(op.round(x)), 0, 255)), "uint8"))
        left = net.emit(op.astype(data, "int32"))
        return net.emit(op.astype(net.emit(op.matmul(left, relax.const(numbers), out_dtype="int32")), "float32"))

    x = RNG.uniform(0, 255, (16, 3, 8)).astype("float32")
    made = outputs(prepare(network([(16, 3, 8)], body), NARROW), NARROW, [x])
    np.testing.assert_array_equal(made, np.round(x) @ numbers)


def test_other_weights_stay_in_float32() -> None:
    mod = network([(6, 12)], product(clipped, RNG.normal(size=(12, 16)).astype("float32"), 0, 255, 7))
    assert annotated(prepare(mod, NARROW)) == []


def test_data_that_are_not_rounded_stay_in_float32() -> None:
    def body(net: Network, x: Any) -> Any:
        scaled = net.emit(op.multiply(net.emit(op.clip(x, 0, 255)), one(STEP)))
        return net.emit(op.matmul(scaled, relax.const(numbers.astype("float32"))))

    numbers, _ = weights(12, 16)
    assert annotated(prepare(network([(6, 12)], body), NARROW)) == []


def far_from_zero(net: Network, x: Any) -> Any:
    clipped = net.emit(op.clip(net.emit(op.round(x)), 1000, 1100))
    whole = relax.const(RNG.integers(-9, 9, (8, 8, 3, 3)).astype("float32"))
    return net.emit(op.nn.conv2d(net.emit(op.multiply(clipped, one(0.01))), whole))


def far_from_zero_in_bytes(net: Network, x: Any) -> Any:
    data = net.emit(op.astype(net.emit(op.clip(net.emit(op.round(x)), 0, 255)), "uint8"))
    left = net.emit(op.subtract(net.emit(op.astype(data, "int32")), relax.const(np.array([1000], "int32"))))
    right = relax.const(RNG.integers(-9, 9, (8, 8, 3, 3)).astype("int32"))
    return net.emit(op.astype(net.emit(op.nn.conv2d(left, right)), "float32"))


@pytest.mark.parametrize("body", [far_from_zero, far_from_zero_in_bytes])
def test_numbers_far_from_zero_are_not_taken_for_quantized_ones(body: Any) -> None:
    assert annotated(prepare(network([(1, 8, 5, 6)], body), NARROW)) == []


def test_numbers_and_steps_are_found_in_float32_weights() -> None:
    numbers, steps = weights(40, 24)
    numbers[:, 3] = 0
    numbers[0, 4:] = 127  # with fewer steps a column may be the same
    found = quantized_columns((numbers * steps).astype("float32"))
    assert found is not None
    np.testing.assert_allclose(found.numbers * found.steps, numbers * steps, rtol=3e-7)
    np.testing.assert_array_equal(found.numbers[:, 4:], numbers[:, 4:])


def test_arguments_of_a_measurement_are_whole_numbers() -> None:
    load_intrinsics(NARROW)
    numbers, steps = weights(12, 16)
    mod = network([(60, 12)], product(clipped, (numbers * steps).astype("float32"), 0, 255, 7))
    workloads = [read_workload(each.workload_json) for each in extract(prepare(mod, NARROW), NARROW)]
    described = next(args_of(each) for each in workloads if MATMUL in str(each.mod))
    bounds = [tuple(each[3]) if len(each) > 3 else None for each in described]
    assert bounds == [(0, 255), (-128, 127), *[None] * (len(described) - 2)]
    data, columns, *others = (each.numpy() for each in random_args(described, 1, cpu_processor()))
    for array, (low, high) in ((data, (0, 255)), (columns, (-128, 127))):
        np.testing.assert_array_equal(array, np.round(array))
        assert low <= array.min() < low + 9
        assert high - 9 < array.max() <= high
    assert all(0 <= each.min() <= each.max() <= 1 for each in others)


def convolved(image: Array, weights: Array, padding: int) -> Array:
    """By its definition, in float64."""
    padded = np.pad(image.astype("float64"), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, weights.shape[2:], axis=(2, 3))
    found: Array = np.einsum("ncyxrs,kcrs->nkyx", patches, weights, optimize=True)
    return found


@pytest.mark.parametrize("form", [clipped, within_limits])
@pytest.mark.parametrize(("zero", "bounds"), [(0, [0, 255]), (28, [-255, 255])])
def test_a_quantized_convolution_is_one_of_whole_numbers(form: Any, zero: int, bounds: list[int]) -> None:
    numbers = RNG.integers(-128, 128, (8, 8, 3, 3))
    steps = RNG.uniform(1e-3, 1e-1, (8, 1, 1, 1)).astype("float32")
    floats = (numbers * steps).astype("float32")

    def body(net: Network, x: Any) -> Any:
        value = net.emit(op.multiply(form(net, x, 0, 255, zero), one(STEP)))
        made = net.emit(op.nn.conv2d(value, relax.const(floats), padding=1))
        return net.emit(op.nn.relu(made))

    mod = network([(1, 8, 5, 6)], body)
    x = RNG.normal(0, 5, (1, 8, 5, 6)).astype("float32")
    expected = np.maximum(convolved(activation(x, 0, 255, zero), floats, 1), 0)
    direct = prepare(mod, NARROW)
    assert annotated(direct) == [[*bounds, -128, 127]]
    np.testing.assert_allclose(outputs(direct, NARROW, [x]), expected, atol=2e-6 * expected.max())
    name, target = (INT16, AVX2) if zero else (INT8, VNNI)
    assert names(prepare(mod, target, name)) == names(prepare(mod, target))
    assert not annotated(prepare(mod, target, name))


@pytest.mark.parametrize(
    ("channels", "groups"),
    [pytest.param(8, 1, id="dense"), pytest.param(1, 1, id="first"), pytest.param(8, 8, id="depthwise")],
)
def test_an_integer_convolution_is_exact(channels: int, groups: int) -> None:
    """As ConvInteger comes, with computed zero point and bias, and a zero point of the weights."""
    numbers = RNG.integers(0, 256, (8, channels // groups, 3, 3)).astype("uint8")

    def body(net: Network, x: Any, zero: Any, bias: Any) -> Any:
        data = net.emit(op.astype(net.emit(op.clip(net.emit(op.round(x)), 0, 255)), "uint8"))
        point = net.emit(op.reshape(net.emit(op.astype(net.emit(op.astype(zero, "uint8")), "int32")), [1]))
        left = net.emit(op.subtract(net.emit(op.astype(data, "int32")), point))
        right = relax.const(numbers.astype("int32") - 103)
        made = net.emit(op.nn.conv2d(left, right, padding=1, groups=groups))
        made = net.emit(op.add(made, net.emit(op.reshape(net.emit(op.astype(bias, "int32")), [1, 8, 1, 1]))))
        return net.emit(op.multiply(net.emit(op.astype(made, "float32")), one(0.5)))

    mod = network([(1, channels, 5, 6), (), (8,)], body)
    bias = np.arange(-4, 4, dtype="float32") * 1000
    x, zero = RNG.integers(0, 256, (1, channels, 5, 6)).astype("float32"), np.array(131, "float32")
    if groups == 1:
        whole = convolved(x - 131, numbers.astype(int) - 103, 1)
    else:
        parts = [convolved(x[:, [at]] - 131, numbers[[at]].astype(int) - 103, 1) for at in range(channels)]
        whole = np.concatenate(parts, axis=1)
    direct = prepare(mod, NARROW)
    assert annotated(direct) == ([[-255, 255, -255, 255]] if channels > 1 and groups == 1 else [])
    np.testing.assert_array_equal(outputs(direct, NARROW, [x, zero, bias]), (whole + bias[:, None, None]) * 0.5)
    assert sum(each.startswith("cast") for each in calls(direct)) == 1, "of the zero point; the bias is cast at once"
    assert any("conv2d" in each and "add" in each for each in calls(direct))


def test_a_computed_zero_point_that_was_no_byte_is_subtracted_in_int32() -> None:
    """40,000 does not fit into 16 bits, nor do its products fit into float32."""
    numbers = RNG.integers(-128, 128, (8, 8, 3, 3)).astype("int8")

    def body(net: Network, x: Any, zero: Any) -> Any:
        data = net.emit(op.astype(net.emit(op.clip(net.emit(op.round(x)), 0, 255)), "uint8"))
        point = net.emit(op.reshape(net.emit(op.astype(zero, "int32")), [1]))
        left = net.emit(op.subtract(net.emit(op.astype(data, "int32")), point))
        made = net.emit(op.nn.conv2d(left, relax.const(numbers.astype("int32")), padding=1))
        return net.emit(op.astype(made, "float32"))

    mod = network([(1, 8, 5, 6), ()], body)
    x, zero = RNG.integers(0, 256, (1, 8, 5, 6)).astype("float32"), np.array(40_000, "float32")
    direct = prepare(mod, NARROW)
    assert annotated(direct) == []
    expected = convolved(x - 40_000, numbers.astype(int), 1).astype("float32")
    np.testing.assert_array_equal(outputs(direct, NARROW, [x, zero]), expected)


def test_data_in_blocks_stay_there() -> None:
    """A quantized convolution after another kernel: the numbers are its epilogue."""

    def body(net: Network, x: Any) -> Any:
        made = net.conv(x, 8, 1)
        data = net.emit(op.astype(net.emit(op.clip(net.emit(op.round(made)), 0, 255)), "uint8"))
        left = net.emit(op.subtract(net.emit(op.astype(data, "int32")), relax.const(np.array([7], "int32"))))
        right = relax.const(RNG.integers(-9, 9, (8, 8, 3, 3)).astype("int32"))
        return net.emit(op.astype(net.emit(op.nn.conv2d(left, right, padding=1)), "float32"))

    direct = prepare(network([(1, 8, 5, 6)], body), NARROW)
    assert annotated(direct) == [[-255, 255, -128, 127]]
    first, second = (each for each in calls(direct) if "conv2d" in each)
    assert "subtract" in first
    assert "subtract" not in second


@pytest.mark.parametrize("form", [clipped, within_limits])
def test_a_product_of_two_quantized_values_is_one_of_whole_numbers(form: Any) -> None:
    def body(net: Network, x: Any, y: Any) -> Any:
        left = net.emit(op.multiply(form(net, x, 0, 255, 28), one(STEP)))
        right = net.emit(op.multiply(form(net, y, 0, 255, 140), one(STEP)))
        made = net.emit(op.matmul(left, net.emit(op.permute_dims(right, [0, 1, 3, 2]))))
        return net.emit(op.nn.relu(made))

    mod = network([(1, 2, 40, 10), (1, 2, 40, 10)], body)
    x, y = (RNG.normal(0, 5, (1, 2, 40, 10)).astype("float32") for _ in range(2))
    right = activation(y, 0, 255, 140).swapaxes(2, 3).astype("float64")
    expected = np.maximum(activation(x, 0, 255, 28).astype("float64") @ right, 0)
    direct = prepare(mod, NARROW)
    assert annotated(direct) == [[-255, 255, -255, 255, 1]]
    np.testing.assert_allclose(outputs(direct, NARROW, [x, y]), expected, atol=2e-6 * expected.max())
    float32, other = prepare(mod, AVX2), prepare(mod, AVX2, INT16)
    assert annotated(float32)
    assert not annotated(other)
    assert names(float32) == names(other)
