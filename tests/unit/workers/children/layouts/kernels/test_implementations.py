"""Other implementations of a convolution: the same numbers within a bound, the same calls, and an epilogue."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, strategies as st
from tvm import relax, te

from fractune_workers.children.importing.passes import planned, prepare
from fractune_workers.children.layouts.kernels.direct import Blocks, Window, from_blocks, pack, to_blocks
from fractune_workers.children.layouts.kernels.implementations import IMPLEMENTATIONS, may_have_others, order
from fractune_workers.children.layouts.kernels.packing import pack_winograd
from fractune_workers.children.rewriting.simplify import simplify
from tests.support.unoptimized import outputs_of, run_kernel
from tests.unit.workers.children.layouts.networks import Array, Network, calls, inputs_of, network, outputs

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
"""4 lanes; any x86-64 runs it"""
BOUNDS = {"winograd2": 2e-6, "winograd4": 2e-5}
"""of an output's error, relative to the largest output"""
op = relax.op


def of_image(shape: tuple[int, ...], out_channels: int, padding: Any, body: Callable[..., Any] | None = None) -> Any:
    def convolved(net: Network, x: Any) -> Any:
        made = net.conv(x, out_channels, padding=padding)
        return body(net, made) if body else made

    return network([shape], convolved)


def in_float64(mod: tvm.IRModule, image: Array, number: int = 0) -> Any:
    """What a convolution of `mod` gives, by its definition."""
    call = mod["main"].body.blocks[0].bindings[number].value
    weight = call.args[1].value.numpy().astype(np.float64)
    top, left, bottom, right = (int(side) for side in call.attrs.padding)
    padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("ncyxrs,kcrs->nkyx", patches, weight, optimize=True)


IMAGES: dict[str, tuple[tuple[int, ...], int, Any]] = {
    "14 x 14": ((1, 16, 14, 14), 16, 1),
    "13 x 13": ((1, 16, 13, 13), 16, 1),
    "27 x 27": ((1, 8, 27, 27), 8, 1),
    "7 x 7": ((1, 64, 7, 7), 64, 1),
    "without padding": ((1, 8, 9, 9), 8, 0),
    "one pixel": ((1, 8, 3, 3), 8, 0),
    "one pixel, padded": ((1, 8, 1, 1), 8, 1),
    "unevenly padded": ((1, 8, 5, 11), 8, (0, 1, 2, 0)),
    "channels filled up": ((1, 7, 6, 6), 13, 1),
    "a batch of two": ((2, 8, 6, 6), 8, 1),
}
"""shape, channels out, padding"""


@pytest.mark.parametrize("name", BOUNDS)
def test_it_computes_the_convolution_within_its_bound(name: str) -> None:
    def body(net: Network, *images: Any) -> Any:
        made = zip(images, IMAGES.values(), strict=True)
        return relax.Tuple([net.conv(x, channels, padding=padding) for x, (_, channels, padding) in made])

    mod = network([shape for shape, *_ in IMAGES.values()], body)
    given = inputs_of(mod)
    found = outputs_of(planned(simplify(mod), TARGET, name), TARGET, *given)
    for number, (case, image, ours) in enumerate(zip(IMAGES, given, found, strict=True)):
        expected = in_float64(mod, image, number)
        assert np.abs(ours - expected).max() <= BOUNDS[name] * np.abs(expected).max(), case


@pytest.mark.parametrize("name", ["", *BOUNDS])
def test_input_channels_that_fill_no_block_are_read_in_runs(name: str) -> None:
    eight_lanes = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    mod = of_image((1, 12, 9, 9), 16, 1)
    given = inputs_of(mod)
    plan = planned(simplify(mod), eight_lanes, name)
    expected = in_float64(mod, given[0])
    found = outputs(plan, eight_lanes, given)
    assert np.abs(found - expected).max() <= BOUNDS["winograd4"] * np.abs(expected).max()
    if not name:
        (shape,) = (each.params[1].shape for var, each in plan.functions.items() if var.name_hint == "conv2d")
        assert [int(dim) for dim in shape] == [2, 3, 3, 3, 4, 8]


def epilogue(net: Network, x: Any) -> Any:
    sum_ = net.emit(op.add(x, net.weight(1, 8, 1, 1)))
    return net.emit(op.nn.relu(net.emit(op.add(sum_, net.conv(x, 8, 1)))))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_calls_correspond_one_to_one_and_take_an_epilogue(name: str) -> None:
    mod = of_image((1, 8, 6, 6), 8, 1, epilogue)
    direct, other = prepare(mod, TARGET), prepare(mod, TARGET, name)
    assert calls(direct) == calls(other)
    assert any("relu" in call for call in calls(other))
    given = inputs_of(mod)
    expected = outputs(direct, TARGET, given)
    np.testing.assert_allclose(outputs(other, TARGET, given), expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        pytest.param(1, {}, id="1 x 1"),
        pytest.param(3, {"strides": 2}, id="strided"),
        pytest.param(3, {"dilation": 2}, id="dilated"),
        pytest.param(3, {"groups": 2}, id="groups"),
    ],
)
def test_what_it_does_not_fit_is_computed_directly(name: str, kernel: int, options: dict[str, Any]) -> None:
    mod = network([(1, 8, 6, 6)], lambda net, x: net.conv(x, 8, kernel, **options))
    tvm.ir.assert_structural_equal(planned(mod, TARGET, name), planned(mod, TARGET))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_weights_are_repacked_from_the_direct_ones(name: str) -> None:
    mod = of_image((1, 8, 6, 6), 8, 1)
    direct, other = (constants(planned(simplify(mod), TARGET, which)) for which in ("", name))
    (mine,), (theirs,) = direct, other
    np.testing.assert_array_equal(pack_winograd(name, mine), theirs)


def constants(mod: tvm.IRModule) -> list[Array]:
    found: list[Array] = []

    def visit(expr: Any) -> None:
        payload = getattr(expr, "value", None)
        if isinstance(payload, tvm.runtime.Tensor):
            found.append(payload.numpy())

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


@pytest.mark.parametrize(
    ("channels", "extent", "expected"),
    [
        pytest.param((64, 64), 56, ["winograd4", "winograd2", ""], id="many tiles"),
        pytest.param((512, 512), 7, ["winograd2", "", "winograd4"], id="many weights"),
        pytest.param((16, 16), 1, ["", "winograd2", "winograd4"], id="one pixel"),
    ],
)
def test_the_likeliest_comes_first(channels: tuple[int, int], extent: int, expected: list[str]) -> None:
    window = Window((1, 1), (1, 1, 1, 1), (1, 1))
    weights = (channels[1] // 16, channels[0] // 16, 3, 3, 16, 16)
    assert order(window, weights, (extent, extent)) == expected


def test_only_what_fits_is_in_the_order() -> None:
    assert order(Window((2, 2), (1, 1, 1, 1), (1, 1)), (4, 4, 3, 3, 16, 16), (56, 56)) == [""]


@pytest.mark.parametrize(
    ("shapes", "may"),
    [
        ([(1, 2, 8, 8, 16), (4, 2, 3, 3, 16, 16), (1, 4, 8, 8, 16)], True),
        ([(3, 1, 2, 8, 8, 16), (3, 4, 2, 3, 3, 16, 16), (3, 1, 4, 8, 8, 16)], True),
        ([(1, 2, 8, 8, 16), (4, 2, 1, 1, 16, 16), (1, 4, 8, 8, 16)], False),
        ([(1, 2, 8, 8, 16), (2, 3, 3, 16), (1, 2, 8, 8, 16)], False),
    ],
    ids=["dense", "with slots", "1 x 1", "depthwise"],
)
def test_only_weights_of_3_by_3_over_blocks_may_have_other_implementations(
    shapes: list[tuple[int, ...]], *, may: bool
) -> None:
    assert may_have_others(shapes) == may


def run(mod: Any, data: Any, shape: tuple[int, ...]) -> Any:
    return run_kernel(mod, TARGET, data, np.empty(shape, "float32"))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_packed_elements_are_where_the_layout_says(shape: list[int], data: st.DataObject) -> None:
    axis, size = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(1, 4))
    array = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    blocks = Blocks(tuple(shape), axis, size)
    packed = pack(array, axis, size, fill=-1.0)
    assert packed.shape == blocks.physical
    assert (packed == -1.0).sum() == packed.size - array.size
    for index, number in np.ndenumerate(array):
        at = (*index[:axis], index[axis] // size, *index[axis + 1 :], index[axis] % size)
        assert packed[at] == number
    assert blocks.filled_up == (shape[axis] % size > 0)


@pytest.mark.parametrize(("channels", "count"), [(1, 1), (59, 15), (61, 16), (64, 16), (65, 18), (68, 17), (72, 18)])
def test_many_blocks_that_are_filled_up_are_an_even_number(channels: int, count: int) -> None:
    blocks = Blocks((2, channels, 3), 1, 4)
    assert blocks.count == count
    assert pack(np.ones(blocks.shape), 1, 4).shape == blocks.physical == (2, count, 3, 4)
    assert blocks.filled_up == (channels < 4 * count)


@pytest.mark.parametrize("channels", [6, 10, 130], ids=["half a block a part", "one and a fourth", "many"])
def test_parts_lie_as_if_each_were_a_tensor(channels: int) -> None:
    blocks = Blocks((2, channels, 3), 1, 4, parts=2)
    array = np.random.default_rng(0).random(blocks.shape, "float32")
    packed = pack(array, 1, 4, parts=2)
    assert packed.shape == blocks.physical
    assert np.array_equal(packed, np.concatenate([pack(part, 1, 4) for part in np.split(array, 2, axis=1)], axis=1))
    for channel in range(channels):
        block, lane = blocks.place(channel)
        assert np.array_equal(packed[:, block, :, lane], array[:, channel])
        assert blocks.channel(block, lane) == (channel, True)


@pytest.mark.parametrize(("channels", "parts"), [(5, 1), (10, 2)])
def test_tensor_expressions_pack_and_unpack_alike(channels: int, parts: int) -> None:
    blocks = Blocks((2, channels, 1, 3), 1, 4, dropped=(2,), parts=parts)
    plain = np.random.default_rng(0).random(blocks.plain, "float32")
    there, back = te.placeholder(blocks.plain, name="plain"), te.placeholder(blocks.physical, name="packed")
    packed = run(te.create_prim_func([there, to_blocks(there, blocks)]), plain, blocks.physical)
    assert np.array_equal(packed, pack(plain[:, :, None], 1, 4, parts=parts))
    assert np.array_equal(run(te.create_prim_func([back, from_blocks(back, blocks)]), packed, blocks.plain), plain)
