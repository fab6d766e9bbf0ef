"""Planned layouts: whatever the operators and extents, the same numbers come out, and few transforms are left."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.importing.passes import extract, planned, prepare
from fractune_workers.children.rewriting.simplify import simplify
from fractune_workers.children.tvm_api.intrinsics import load_intrinsics
from fractune_workers.children.tvm_api.target import vector_unit
from tests.support.unoptimized import outputs_of
from tests.unit.workers.children.layouts.networks import Network, calls, inputs_of, network, outputs

NARROW = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
"""4 lanes, so that small networks have blocks; any x86-64 runs it"""
AVX512 = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"})
LANES = 4
op = relax.op


def of_image(channels: int, size: int, body: Callable[..., Any]) -> tvm.IRModule:
    return network([(1, channels, size, size)], body)


def check(mod: tvm.IRModule, target: tvm.target.Target = NARROW) -> list[str]:
    """Each output of the planned module is that of the plain one; returns what it calls."""
    given = inputs_of(mod)
    plan = planned(simplify(mod), target)
    found, expected = outputs_of(plan, target, *given), outputs_of(mod, target, *given)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert np.ptp(theirs) > 0
        np.testing.assert_allclose(ours, theirs, 1e-4, 1e-4 * np.abs(theirs).max(), err_msg=f"output {number}")
    return calls(plan)


def all_of(net: Network, made: dict[str, Callable[..., Any]], *values: Any) -> Any:
    """A model is compiled in a tenth of the time of as many models."""
    return relax.Tuple([net.emit(each(net, *values)) for each in made.values()])


def transforms(names: list[str]) -> int:
    return sum("blocks" in name for name in names)


def test_the_narrow_target_has_four_lanes() -> None:
    assert vector_unit(NARROW).lanes == LANES


CONVOLUTIONS: dict[str, tuple[int, int, int, int, dict[str, Any]]] = {
    "padded": (8, 16, 9, 3, {"padding": 1}),
    "1x1": (8, 16, 9, 1, {}),
    "strided, unevenly padded": (8, 8, 9, 3, {"strides": 2, "padding": (0, 1, 1, 0)}),
    "dilated": (8, 8, 11, 3, {"dilation": 2}),
    "first layer, one channel": (1, 8, 9, 3, {}),
    "first layer, three channels": (3, 8, 9, 5, {"strides": 2, "padding": 2}),
    "odd channels": (7, 13, 5, 3, {}),
    "groups of whole blocks": (16, 16, 6, 3, {"groups": 2}),
    "groups of one and a half blocks": (12, 12, 6, 3, {"groups": 2}),
    "two groups are three blocks": (24, 24, 6, 1, {"groups": 4}),
    "groups of parts of a block": (18, 18, 6, 3, {"groups": 6, "padding": 1}),
    "groups of one input": (6, 12, 6, 1, {"groups": 6}),
    "groups of fewer inputs than outputs": (12, 24, 6, 3, {"groups": 4}),
    "groups, the last block filled up": (6, 10, 6, 1, {"groups": 2}),
    "depthwise": (12, 12, 6, 3, {"groups": 12, "padding": 1}),
    "depthwise, odd channels": (10, 10, 6, 3, {"groups": 10}),
}
"""channels in and out, size of image and kernel, options"""


def test_convolutions_compute_in_blocks() -> None:
    def body(net: Network, *images: Any) -> Any:
        made = zip(images, CONVOLUTIONS.values(), strict=True)
        return relax.Tuple([net.conv(x, out, kernel, **options) for x, (_, out, _, kernel, options) in made])

    names = check(network([(1, channels, size, size) for channels, _, size, *_ in CONVOLUTIONS.values()], body))
    assert sum(name.startswith("conv2d") for name in names) == len(CONVOLUTIONS)


def padded_rows(net: Network, x: Any) -> Any:
    return net.emit(op.nn.conv2d(x, net.weight(4, 8, 3, 1), strides=(2, 1), padding=(2, 0, 1, 0), dilation=(2, 1)))


def depthwise(net: Network, x: Any) -> Any:
    return net.conv(x, 8, groups=8, strides=(1, 2), padding=(1, 0, 2, 1), dilation=(2, 1))


@pytest.mark.parametrize("body", [padded_rows, depthwise])
def test_zeros_around_an_image_are_not_copied(body: Callable[..., Any]) -> None:
    mod = of_image(8, 9, body)
    assert check(mod).count("conv2d") == 1
    kernel = next(each for var, each in planned(simplify(mod), NARROW).functions.items() if var.name_hint == "conv2d")
    assert "pad_temp" not in kernel.script()


def test_products_of_computed_operands_compute_in_blocks() -> None:
    def body(net: Network, left: Any, right: Any, few: Any) -> Any:
        by_constant = net.emit(op.matmul(net.weight(9, 7), right))
        return relax.Tuple([net.emit(op.matmul(left, right)), net.emit(op.matmul(left, few)), by_constant])

    names = check(network([(3, 9, 7), (3, 7, 8), (3, 7, 2)], body))
    assert sum(name.startswith("matmul") for name in names) == 3
    assert "relax.matmul" not in names


@pytest.mark.parametrize(
    ("channels", "mcpu", "expected"),
    [(24, "znver4", 8), (32, "znver4", 16), (24, "skylake-avx512", 16)],
)
def test_half_vectors_hold_channels_that_fill_no_whole_ones(channels: int, mcpu: str, expected: int) -> None:
    mod = of_image(channels, 9, lambda net, x: net.conv(net.conv(x, channels), channels))
    plan = planned(simplify(mod), tvm.target.Target({"kind": "llvm", "mcpu": mcpu}))
    kernel = next(each for var, each in plan.functions.items() if var.name_hint == "conv2d")
    assert int(kernel.params[-1].shape[-1]) == expected
    found, right = (outputs_of(each, NARROW, *inputs_of(mod))[0] for each in (plan, mod))
    np.testing.assert_allclose(found, right, 1e-4, 1e-3)


def test_products_of_whole_numbers_keep_whole_vectors() -> None:
    def body(net: Network, x: Any) -> Any:
        return net.conv(net.emit(op.round(net.conv(x, 24))), 24)

    plan = planned(simplify(of_image(24, 9, body)), tvm.target.Target({"kind": "llvm", "mcpu": "znver4"}))
    assert {int(each.params[1].shape[-1]) for var, each in plan.functions.items() if "conv2d" in var.name_hint} == {16}


@pytest.mark.parametrize(
    ("sections", "count"),
    [
        pytest.param([8], 2, id="whole blocks"),
        pytest.param(4, 4, id="equal parts"),
    ],
)
def test_a_split_into_whole_blocks_stays_in_blocks(sections: Any, count: int) -> None:
    def body(net: Network, x: Any) -> Any:
        parts = net.emit(op.split(net.conv(x, 16), sections, 1))
        return net.emit(op.concat([net.conv(net.emit(parts[at]), 8) for at in range(count)], 1))

    assert transforms(check(of_image(8, 9, body))) == 2


def test_a_split_within_blocks_takes_the_plain_value() -> None:
    def body(net: Network, x: Any) -> Any:
        parts = net.emit(op.split(net.conv(x, 16), [6], 1))
        return net.emit(op.concat([net.emit(parts[1]), net.emit(parts[0])], 1))

    assert "relax.split" in check(of_image(8, 9, body))


def test_a_concatenation_of_all_parts_of_a_split_reads_the_split_value() -> None:
    def body(net: Network, x: Any) -> Any:
        split = net.emit(op.split(net.conv(x, 16), 2, 1))
        first, second = net.emit(split[0]), net.emit(split[1])
        return net.emit(op.concat([first, second, net.conv(second, 8, 1)], 1))

    names = check(of_image(8, 9, body))
    assert names.count("relax.strided_slice") == 1
    assert "relax.split" not in names


def test_a_convolution_whose_weight_is_an_input_stays_plain() -> None:
    """Nothing is packed at run time."""
    mod = network([(1, 8, 6, 6), (8, 8, 3, 3)], lambda net, x, w: net.emit(op.nn.conv2d(x, w)))
    assert check(mod) == ["relax.nn.conv2d"]


def test_two_convolutions_need_one_transform_at_each_border() -> None:
    def body(net: Network, x: Any) -> Any:
        hidden = net.emit(op.nn.relu(net.emit(op.add(net.conv(x, 16, padding=1), net.weight(1, 16, 1, 1)))))
        return net.conv(hidden, 8, 1)

    assert transforms(check(of_image(8, 7, body))) == 2


def test_padding_by_other_parts_of_the_image_stays_in_blocks() -> None:
    def body(net: Network, x: Any) -> Any:
        value = net.conv(x, 8)
        ends = [net.emit(op.strided_slice(value, [3], [begin], [begin + 2])) for begin in (5, 0)]
        return net.conv(net.emit(op.concat([ends[0], value, ends[1]], 3)), 8)

    names = check(of_image(8, 9, body))
    assert transforms(names) == 2


def test_few_outputs_of_a_plain_image_are_computed_in_a_block() -> None:
    def body(net: Network, *images: Any) -> Any:
        return relax.Tuple([net.conv(image, 2) for image in images])

    names = check(network([(1, 2, 9, 9), (1, 3, 9, 9)], body))
    assert [name for name in names if "conv2d" in name] == ["conv2d", "conv2d1"]


def test_few_outputs_of_an_image_in_blocks_are_computed_in_a_block() -> None:
    names = check(of_image(8, 9, lambda net, x: net.conv(net.conv(x, 8), 1)))
    assert sum(name.startswith("conv2d") for name in names) == 2
    assert transforms(names) == 2


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "relu": lambda _, x: op.nn.relu(x),
    "sigmoid": lambda _, x: op.sigmoid(x),
    "clip": lambda _, x: op.clip(x, -1.0, 1.0),
    "exp": lambda net, x: op.exp(net.emit(op.tanh(x))),
    "times a scalar": lambda _, x: op.multiply(x, relax.const(2.0)),
    "over a number per channel": lambda net, x: op.divide(x, net.positive(10, 1, 1)),
    "number per pixel minus": lambda net, x: op.subtract(net.weight(1, 1, 6, 6), x),
    "maximum with itself": lambda _, x: op.maximum(x, x),
    "residual": lambda net, x: op.add(x, net.conv(x, 10, 1)),
    "excitation": lambda net, x: op.multiply(net.emit(op.mean(x, [2, 3], keepdims=True)), x),
    "mean": lambda _, x: op.mean(x, [2, 3], keepdims=True),
    "max over one axis, dropped": lambda _, x: op.max(x, [2], keepdims=False),
    "sum over channels": lambda _, x: op.sum(x, [1], keepdims=True),
    "max pool": lambda _, x: op.nn.max_pool2d(x, 3, 2, 1),
    "max pool, ceil": lambda _, x: op.nn.max_pool2d(x, 2, 2, 0, ceil_mode=True),
    "average pool": lambda _, x: op.nn.avg_pool2d(x, 3, 1, 1),
    "average with padding": lambda _, x: op.nn.avg_pool2d(x, 3, 2, 1, count_include_pad=True),
    "average pool, ceil": lambda _, x: op.nn.avg_pool2d(x, 3, 2, 0, ceil_mode=True),
    "adaptive pool": lambda _, x: op.nn.adaptive_avg_pool2d(x, 3),
    "resize": lambda _, x: op.image.resize2d(x, relax.ShapeExpr([12, 12]), method="linear"),
    "concat": lambda net, x: op.concat([x, net.conv(x, 8, 1)], 1),
    "concat of rows": lambda _, x: op.concat([x, x], 2),
    "slice of every second row, backwards": lambda _, x: op.strided_slice(x, [3, -2], [1, 5], [4, 0], [1, -2]),
    "slice of channels": lambda _, x: op.strided_slice(x, [1], [1], [7]),
    "something that no rule knows": lambda _, x: op.permute_dims(x, [0, 2, 3, 1]),
    "softmax over channels": lambda _, x: op.nn.softmax(x, 1),
}


@pytest.mark.parametrize("channels", [pytest.param(8, id="whole blocks"), pytest.param(10, id="a block filled up")])
def test_what_comes_after_a_convolution_sees_the_same(channels: int) -> None:
    def body(net: Network, x: Any) -> Any:
        value = net.conv(x, 10 if channels == 10 else 8, padding=1)
        value = net.conv(value, 10) if channels == 10 else net.conv(value, 10, padding=0)
        return all_of(net, ELEMENTWISE, value)

    check(of_image(channels, 8, body))


def test_lanes_that_stand_for_no_channel_do_no_harm() -> None:
    """Their exponential's logarithm, a division by them, and then a convolution that reads them."""

    def body(net: Network, x: Any) -> Any:
        value = net.emit(op.exp(net.conv(x, 6, 1)))
        ratio = net.emit(op.divide(value, net.emit(op.add(net.conv(value, 6, 1), relax.const(100.0)))))
        return net.conv(net.emit(op.log(net.emit(op.add(ratio, relax.const(100.0))))), 8, 1)

    check(of_image(8, 3, body))


def shuffled(net: Network, x: Any, groups: int, axes: tuple[int, ...] = (0, 2, 1, 3, 4)) -> Any:
    batch, channels, *pixels = (int(dim) for dim in x.ty.shape)
    split = net.emit(op.reshape(x, (batch, groups, channels // groups, *pixels)))
    return net.emit(op.reshape(net.emit(op.permute_dims(split, axes)), (batch, channels, *pixels)))


@pytest.mark.parametrize("groups", [2, 3, 6], ids=["parts of a block and a half", "whole blocks", "half a block"])
def test_a_channel_shuffle_is_one_kernel_from_blocks_to_blocks(groups: int) -> None:
    names = check(of_image(12, 5, lambda net, x: net.conv(shuffled(net, net.conv(x, 12), groups), 12, groups=12)))
    assert names.count("shuffle") == 1
    assert transforms(names) == 2
    assert "relax.permute_dims" not in names


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda net, x: shuffled(net, x, 3, (0, 1, 2, 4, 3)), id="rows and columns change places"),
        pytest.param(lambda net, x: shuffled(net, x, 3, (1, 0, 2, 3, 4)), id="nothing is between the groups"),
        pytest.param(lambda net, x: net.emit(op.reshape(x, (1, 6, 6, 12))), id="another shape"),
        pytest.param(lambda net, x: net.emit(op.permute_dims(x, (0, 1, 3, 2))), id="no groups"),
    ],
)
def test_what_is_almost_a_channel_shuffle_leaves_the_blocks(body: Callable[..., Any]) -> None:
    assert "shuffle" not in check(of_image(12, 6, lambda net, x: body(net, net.conv(x, 12, 1))))


def test_groups_lie_in_blocks_of_their_own_from_one_convolution_to_the_next() -> None:
    """A bottleneck of ShuffleNet: groups of one and a half blocks, a shuffle, a depthwise convolution, a residual."""

    def body(net: Network, x: Any) -> Any:
        value = net.emit(op.nn.relu(net.emit(op.add(net.conv(x, 12, 1, groups=2), net.weight(1, 12, 1, 1)))))
        value = net.conv(shuffled(net, value, 2), 12, padding=1, groups=12)
        value = net.emit(op.add(net.conv(value, 12, 1, groups=2), x))
        value = net.emit(op.nn.max_pool2d(value, 3, 2))
        return net.emit(op.multiply(value, net.emit(op.mean(value, [2, 3], keepdims=True))))

    mod = of_image(12, 7, body)
    assert transforms(check(mod)) == 2
    blocks = planned(simplify(mod), NARROW)["main"].body.blocks
    made = [binding.var.ty.shape for block in blocks for binding in block.bindings]
    assert {int(shape[1]) for shape in made if len(shape) == 5} == {4}


def test_groups_read_runs_of_channels_where_whole_blocks_would_multiply_zeros() -> None:
    mod = of_image(36, 6, lambda net, x: net.conv(x, 36, groups=3, padding=1))
    plan = planned(simplify(mod), tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}))
    kernel = next(each for var, each in plan.functions.items() if var.name_hint == "conv2d")
    assert tuple(map(int, kernel.params[1].shape)) == (6, 3, 3, 3, 4, 8)
    found, right = (outputs_of(each, NARROW, *inputs_of(mod))[0] for each in (plan, mod))
    np.testing.assert_allclose(found, right, 1e-4, 1e-3)


PARTS: dict[str, Callable[..., Any]] = {
    "a dense convolution": lambda net, x, _: net.conv(x, 8, 1),
    "other groups": lambda net, x, _: net.conv(x, 12, 1, groups=3),
    "groups of half a block": lambda net, x, _: net.conv(x, 12, 1, groups=6),
    "plus another layout": lambda _, x, y: op.add(x, y),
    "another layout minus": lambda _, x, y: op.subtract(y, x),
    "excitation by another": lambda net, x, y: op.multiply(x, net.emit(op.mean(y, [2, 3], keepdims=True))),
    "a number per channel": lambda net, x, _: op.add(x, net.weight(12, 1, 1)),
    "channels after another's": lambda _, x, y: op.concat([x, y], 1),
    "rows after another's": lambda _, x, y: op.concat([y, x], 2),
    "average pool": lambda _, x, __: op.nn.avg_pool2d(x, 2),
    "adaptive pool": lambda _, x, __: op.nn.adaptive_avg_pool2d(x, 1),
    "resize": lambda _, x, __: op.image.resize2d(x, relax.ShapeExpr([8, 8]), method="linear"),
    "max, squeezed": lambda net, x, _: op.squeeze(net.emit(op.max(x, [2], keepdims=True)), [2]),
    "shuffled in other groups": lambda net, x, _: op.multiply(shuffled(net, x, 3), x),
}


def test_what_comes_after_groups_in_blocks_of_their_own_sees_the_same() -> None:
    def body(net: Network, x: Any) -> Any:
        dense = net.conv(x, 12, 1)
        return all_of(net, PARTS, net.conv(x, 12, 1, groups=2), dense)

    check(of_image(12, 6, body))


def test_a_squeezed_image_stays_in_blocks() -> None:
    """As of a convolution over a sequence: its epilogue is fused, and the reduction too stays in blocks."""

    def body(net: Network, x: Any) -> Any:
        sequence = net.emit(op.squeeze(net.conv(x, 8, 1), [3]))
        value = net.emit(op.multiply(net.emit(op.add(sequence, net.weight(1, 8, 1))), net.weight(1, 1, 9)))
        return net.emit(op.max(value, [2], keepdims=False))

    names = check(network([(1, 8, 9, 1)], body))
    assert transforms(names) == 2
    assert "relax.squeeze" not in names


@pytest.mark.parametrize("columns", [8, 10, 66])
def test_products_with_a_constant_compute_in_blocks(columns: int) -> None:
    def body(net: Network, *given: Any) -> Any:
        products = [net.emit(op.matmul(x, net.weight(int(x.ty.shape[-1]), columns))) for x in given]
        return relax.Tuple([net.emit(op.nn.relu(net.emit(op.add(x, net.weight(columns))))) for x in products])

    names = check(network([(1, 8), (6, 5), (2, 3, 8)], body))
    assert sum(name.startswith("matmul") for name in names) == 3
    assert transforms(names) == 3 * (columns % LANES > 0)


@pytest.mark.parametrize("columns", [8, 7])
def test_products_of_two_inputs_pack_the_right_one(columns: int) -> None:
    def body(net: Network, *given: Any) -> Any:
        return relax.Tuple([net.emit(op.matmul(*pair)) for pair in zip(given[::2], given[1::2], strict=True)])

    shapes = [(*batch, *sides) for batch in ((), (3,), (1, 2)) for sides in ((9, 6), (6, columns))]
    names = check(network(shapes, body))
    kinds = [name.rstrip("0123456789") for name in names if name.startswith(("pack", "matmul"))]
    assert kinds == ["pack", "matmul"] * 3
    assert transforms(names) == 3 * (columns % LANES > 0)


@pytest.mark.parametrize("shape", [(7, 8), (1, 3, 16, 4)])
def test_a_turned_input_is_packed_as_it_is(shape: tuple[int, ...]) -> None:
    turned = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]

    def body(net: Network, x: Any, y: Any) -> Any:
        return net.emit(op.matmul(x, net.emit(op.permute_dims(y, turned))))

    names = check(network([(*shape[:-2], 9, shape[-1]), shape], body))
    assert [each for each in names if each in ("pack", "matmul", "relax.permute_dims")] == ["pack", "matmul"]


def test_products_of_few_rows_with_an_input_stay_plain() -> None:
    mod = network([(4, 8), (8, 8)], lambda net, x, y: net.emit(op.matmul(x, y)))
    assert check(mod) == ["relax.matmul"]


def test_what_has_an_open_shape_stays_plain() -> None:
    """A shape may depend on data, within a model whose inputs are fixed."""
    rows = tvm.tirx.Var("n", "int64")
    net, x = Network(), relax.Var("x", relax.TensorType([rows, 8], "float32"))
    with net.builder.function("main", [x]):
        with net.builder.dataflow():
            spread = net.emit(op.broadcast_to(x, [rows, 8]))
            product = net.builder.emit_output(op.matmul(spread, net.weight(8, 16)))
        net.builder.emit_func_output(product)
    assert calls(planned(simplify(net.builder.get()), NARROW)) == ["relax.broadcast_to", "relax.matmul"]


@pytest.mark.parametrize("dtype", [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_a_product_reads_weights_of_half_precision_as_they_are(dtype: np.dtype[Any]) -> None:
    draw, size = np.random.default_rng(0), 4096
    data, numbers, bias = (draw.normal(0, 1, shape).astype(dtype) for shape in ((2, 3, size), (size, 13), (13,)))
    x = relax.Var("x", relax.TensorType(data.shape, str(dtype)))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(op.matmul(x, relax.const(numbers, str(dtype))))
            result = builder.emit_output(op.add(product, relax.const(bias, str(dtype))))
        builder.emit_func_output(result)
    mod = prepare(builder.get(), NARROW)
    read = [each for call in mod["main"].body.blocks[0].bindings for each in getattr(call.value.args[1], "fields", ())]
    assert {str(each.ty.dtype) for each in read} == {str(dtype)}
    wanted = data.astype("float32") @ numbers.astype("float32") + bias.astype("float32")
    (found,) = outputs_of(mod, NARROW, data)
    # Two roundings; a sum of half precision would lose the smaller terms.
    tolerance = (2.0**-9 if dtype == "float16" else 2.0**-6) * np.abs(wanted).max()
    np.testing.assert_allclose(found.astype("float32"), wanted, 0, tolerance)


def test_convolutions_of_half_precision_stay_plain() -> None:
    x = relax.Var("x", relax.TensorType([1, 8, 6, 6], "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        weight = relax.const(np.ones((8, 8, 3, 3), "float16"))
        builder.emit_func_output(builder.emit(op.nn.conv2d(x, weight)))
    assert calls(planned(builder.get(), NARROW)) == ["relax.nn.conv2d"]


@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3", "skylake-avx512"])
def test_ingest_and_compile_see_the_same_operators(mcpu: str) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu})
    mod = of_image(3, 16, lambda net, x: net.conv(net.conv(x, 32, padding=1), 48))
    first, second = ({o.workload_hash for o in extract(prepare(mod, target), target)} for _ in range(2))
    assert first == second
    lanes = vector_unit(target).lanes
    assert lanes == {"x86-64": 4, "x86-64-v3": 8, "skylake-avx512": 16}[mcpu]


def test_a_computed_operand_that_is_repeated_keeps_the_blocks() -> None:
    def body(net: Network, x: Any, *others: Any) -> Any:
        sums = [net.emit(op.add(net.emit(op.matmul(x, net.weight(6, 8))), other)) for other in others]
        return relax.Tuple([net.emit(op.nn.relu(each)) for each in sums])

    shapes = [(2, 5, 8), (1, 5, 8), (8,), (1, 1, 1), (2, 5, 1), (1, 1, 8)]
    names = check(network([(2, 5, 6), *shapes], body))
    assert transforms(names) == 0
    assert [names.count(name) for name in ("relax.add", "relax.nn.relu")] == [len(shapes)] * 2


TRANSPOSED: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "twice as large, no overlap": (8, 16, 2, {"strides": 2}),
    "of few channels": (8, 1, 2, {"strides": 2}),
    "odd channels": (7, 6, 2, {"strides": 2}),
    "an overlap, padded": (8, 8, 4, {"strides": 2, "padding": 1}),
    "a phase with fewer weights": (8, 8, 3, {"strides": 2, "padding": 1, "output_padding": 1}),
    "steps of three, odd padding": (8, 12, 5, {"strides": 3, "padding": (1, 2, 0, 1)}),
    "steps longer than the weights": (8, 8, 2, {"strides": 3, "output_padding": 1}),
    "different steps": (8, 8, 4, {"strides": (2, 4), "padding": (1, 0)}),
    "steps along one axis": (8, 8, 3, {"strides": (1, 2), "padding": 1}),
    "dilated": (8, 8, 3, {"strides": 2, "dilation": 2}),
    "depthwise": (8, 8, 4, {"strides": 2, "padding": 1, "groups": 8}),
    "depthwise, odd channels": (6, 6, 4, {"strides": 2, "padding": 1, "groups": 6}),
}
"""channels in and out, size of the weights, options"""
LEFT_PLAIN: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "groups of several channels": (8, 8, 2, {"strides": 2, "groups": 2}),
    "steps much longer than the weights": (8, 8, 1, {"strides": 3}),
    "padding beyond the weights": (8, 8, 2, {"strides": 2, "padding": 5}),
}


def transposed(net: Network, image: Any, case: tuple[int, int, int, dict[str, Any]]) -> Any:
    channels, out, kernel, options = case
    weight = net.weight(channels, out // options.get("groups", 1), kernel, kernel)
    return net.emit(op.nn.conv2d_transpose(image, weight, **options))


@pytest.mark.parametrize(("cases", "left"), [(TRANSPOSED, 0), (LEFT_PLAIN, len(LEFT_PLAIN))], ids=["in blocks", "left"])
def test_they_are_dense_convolutions(cases: dict[str, Any], left: int) -> None:
    def body(net: Network, *images: Any) -> Any:
        return relax.Tuple([transposed(net, x, case) for x, case in zip(images, cases.values(), strict=True)])

    names = check(network([(1, channels, 7, 6) for channels, *_ in cases.values()], body))
    assert sum("conv2d_transpose" in name for name in names) == left


def test_a_chain_stays_in_blocks() -> None:
    """A batch of two; the bias and the activation are computed in blocks."""

    def body(net: Network, image: Any) -> Any:
        first = transposed(net, net.conv(image, 8), (8, 8, 2, {"strides": 2}))
        biased = net.emit(op.nn.relu(net.emit(op.add(first, net.weight(1, 8, 1, 1)))))
        return relax.Tuple([net.conv(biased, 8)])

    assert sum("blocks" in name for name in check(network([(2, 8, 6, 6)], body))) == 2


def test_lines_are_images_of_height_one() -> None:
    def body(net: Network, line: Any) -> Any:
        weight = net.weight(8, 8, 5)
        made = op.nn.conv1d_transpose(line, weight, strides=3, padding=1, output_padding=1)
        return relax.Tuple([net.emit(made)])

    assert not [name for name in check(network([(1, 8, 11)], body)) if "transpose" in name]


# ---- the range of a value in blocks, and its rounded numbers: without a plain value, and without padded lanes


def number(net: Network, value: Any) -> Any:
    return net.emit(op.reshape(value, [1]))


def extremes(net: Network, value: Any, shift: float) -> Any:
    moved = net.emit(op.add(value, relax.const(shift)))
    return net.emit(op.concat([number(net, net.emit(op.min(moved))), number(net, net.emit(op.max(moved)))]))


@pytest.mark.parametrize("channels", [8, 6], ids=["whole blocks", "a block filled up"])
def test_the_range_of_an_image_is_that_of_its_channels(channels: int) -> None:
    """Padded lanes hold the shift alone, which would be the smallest or the largest number."""
    shifts = (-50.0, 0.0, 50.0)  # all negative, both signs, all positive
    mod = network(
        [(1, 4, 6, 6)],
        lambda net, x: relax.Tuple([extremes(net, net.conv(x, channels, padding=1), shift) for shift in shifts]),
    )
    given = inputs_of(mod)
    plan = planned(mod, NARROW)
    assert sum(name.startswith("range") for name in calls(plan)) == len(shifts), "one kernel finds both"
    assert not [name for name in calls(plan) if "from_blocks" in name]
    for ours, theirs in zip(outputs_of(plan, NARROW, *given), outputs_of(mod, NARROW, *given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, 8), (64, 1100), (1, 7)], ids=["plain", "shared by cores", "no whole vectors"])
def test_the_range_of_a_plain_value(shape: tuple[int, ...]) -> None:
    mod = network([shape], lambda net, x: extremes(net, x, 0.0))
    (given,) = inputs_of(mod)
    found = outputs(planned(mod, NARROW), NARROW, [given])
    np.testing.assert_array_equal(found, [given.min(), given.max()])


def test_a_range_over_some_axes_is_a_reduction() -> None:
    mod = network([(3, 8)], lambda net, x: net.emit(op.max(x, axis=[0])))
    assert calls(planned(mod, NARROW)) == ["relax.max"]


def dynamically_quantized(net: Network, x: Any, *_: Any) -> Any:
    """As DynamicQuantizeLinear between two convolutions."""
    hidden = net.conv(x, 6, padding=1)
    smallest, largest = net.emit(op.min(hidden)), net.emit(op.max(hidden))
    scale = net.emit(op.divide(net.emit(op.subtract(largest, smallest)), relax.const(255.0)))
    zero = net.emit(op.round(net.emit(op.negative(net.emit(op.divide(smallest, scale))))))
    counted = net.emit(op.add(net.emit(op.round(net.emit(op.divide(hidden, scale)))), zero))
    return net.conv(net.emit(op.clip(counted, 0, 255)), 8, 1)


def test_numbers_are_rounded_in_a_block_that_is_filled_up() -> None:
    mod = network([(1, 4, 6, 6)], dynamically_quantized)
    given = inputs_of(mod)
    plan = planned(mod, NARROW)
    assert sum("blocks" in name for name in calls(plan)) <= len(["the input", "the output"])
    expected = outputs(mod, NARROW, given)
    # A tie may be rounded to the other number.
    np.testing.assert_allclose(outputs(plan, NARROW, given), expected, atol=0.01 * np.abs(expected).max())


def test_numbers_are_rounded_by_vectors() -> None:
    load_intrinsics(AVX512)
    mod = prepare(network([(16, 64)], lambda net, x: net.emit(op.round(x))), AVX512)
    (name,) = (name for name, function in mod.functions.items() if isinstance(function, tvm.tirx.PrimFunc))
    sch = tvm.s_tir.Schedule(tvm.IRModule({"main": mod[name].with_attr("global_symbol", "main")}))
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    _, vector = sch.split(sch.get_loops(block)[-1], [None, 16])
    sch.vectorize(vector)
    code = tvm.compile(sch.mod, target=AVX512).mod.inspect_source("asm")
    assert "vrndscaleps" in code
    assert "vrndscaless" not in code
