"""Blocks: arrays are packed as TVM's own expression packs them, and come back whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import te

from fractune_workers.children.layouts.kernels.blocks import Blocks, from_blocks, pack, to_blocks
from tests.support.unoptimized import run_kernel

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})


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
