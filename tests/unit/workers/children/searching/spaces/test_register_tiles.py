"""Register tiles: they divide the loops, fit into the registers, and the likeliest come first."""

from math import prod

from hypothesis import given, strategies as st

from fractune_core.tir.canonical import CONV, DEPTHWISE, MATMUL
from fractune_workers.children.searching.spaces.register_tiles import Extents, Tiling, tilings

AVX2, AVX512 = 16, 32
VECTOR_BYTES = 32

extents = st.builds(
    Extents,
    blocks=st.integers(1, 64),
    rows=st.integers(1, 64),
    columns=st.integers(1, 64),
    reduction=st.lists(st.integers(1, 64), min_size=1, max_size=4).map(tuple),
    block_bytes=st.sampled_from([16, 32, 64]),
)


@given(extents, st.sampled_from([AVX2, AVX512]))
def test_every_tiling_divides_its_loops_and_fits_the_registers(given_extents: Extents, registers: int) -> None:
    found = tilings(given_extents, registers)
    assert found
    loops = (given_extents.blocks, given_extents.rows, given_extents.columns)
    for tiling in found:
        inner = [part * around for part, around in zip(tiling.registers, tiling.around, strict=True)]
        assert all(extent % part == 0 for extent, part in zip(loops, inner, strict=True))
        assert len(tiling.reduction) == len(given_extents.reduction)
        chunk = zip(given_extents.reduction, tiling.reduction, strict=True)
        assert all(extent % part == 0 for extent, part in chunk)
        assert prod(tiling.registers) < registers


def first(given_extents: Extents, registers: int) -> Tiling:
    return tilings(given_extents, registers)[0]


def test_a_row_of_thirteen_is_one_chunk_of_work() -> None:
    """13 is prime: a tile has a whole row, or blocks of one pixel while a chunk of weights serves the whole row."""
    for tiling in tilings(Extents(16, 13, 13, (8, 3, 3, 8), VECTOR_BYTES), AVX2)[:4]:
        assert 13 in (*tiling.registers, *tiling.around)
        assert prod(tiling.registers) >= 8


def test_enough_accumulators_hide_the_latency() -> None:
    for registers in (AVX2, AVX512):
        for size in (7, 14, 28, 56):
            tile = first(Extents(8, size, size, (4, 3, 3, 8), VECTOR_BYTES), registers).registers
            assert 6 <= prod(tile) <= 0.8 * registers


def test_where_no_row_can_be_tiled_blocks_are() -> None:
    tile = first(Extents(64, 1, 1, (512,), VECTOR_BYTES), AVX2).registers
    assert tile == (8, 1, 1)


def test_a_reduction_of_one_loop_is_cut_into_chunks() -> None:
    chunks = {tiling.reduction for tiling in tilings(Extents(4, 1, 6, (512,), VECTOR_BYTES), AVX2)}
    assert chunks == {(16,), (64,)}


def test_weights_from_memory_are_read_in_short_chunks() -> None:
    """25 rows of 1024 numbers, and 4 or 32 MiB of weights: short chunks spread the prefetches."""
    few, many = (Extents(blocks, 1, 25, (1024,), 64, MATMUL) for blocks in (64, 512))
    assert first(few, AVX512).reduction == (64,)
    assert first(many, AVX512).reduction == (16,)


def test_one_multiplication_a_cycle_wants_about_ten_accumulators() -> None:
    """In one or two blocks, and never with sums that leave the registers for each chunk."""
    for size in (8, 10, 40, 80):
        for found in tilings(Extents(32, size, size, (8, 1, 1, 16), 64), AVX512, multiplies=1)[:4]:
            assert found.registers[0] <= 2
            assert 8 <= prod(found.registers) <= 10
            assert found.around == (1, 1, 1)


def test_weights_from_afar_serve_several_pixels() -> None:
    """Tiles of eight blocks of one pixel took two and a half times as long for images of 7 x 7."""
    for reduction in ((32, 3, 3, 16), (128, 1, 1, 16)):
        for found in tilings(Extents(32, 7, 7, reduction, 64), AVX512, multiplies=1)[:4]:
            assert 7 in found.registers


def test_sums_that_read_all_their_numbers_at_once_keep_room() -> None:
    """A depthwise tile of 24 accumulators took twice the time of one of 8."""
    for multiplies in (1, 2):
        for kind, reduction in ((DEPTHWISE, (5, 5)), (CONV, (1, 5, 5))):
            tile = tilings(Extents(8, 12, 12, reduction, 64, kind), AVX512, multiplies)[0].registers
            assert prod(tile) <= 20


def test_a_short_loop_over_tiles_is_not_first_where_its_sums_would_spill() -> None:
    """Three rows of 16 steps are unrolled, with 60 accumulators."""
    found = first(Extents(32, 3, 80, (16, 1, 1, 16), 64), AVX512)
    assert found.around == (1, 1, 1) or prod(found.around) * prod(found.registers) < AVX512 or prod(found.around) > 4


def test_where_sums_stay_in_registers_weights_are_read_for_each_tile() -> None:
    """And for many pixels of it. No tile waits in memory until others have used a chunk of the weights."""
    pointwise = Extents(16, 5, 80, (16, 1, 1, 16), 64)
    for tiling in tilings(pointwise, AVX512, keeps_sums=True):
        assert tiling.around == (1, 1, 1)
    assert tilings(pointwise, AVX512, keeps_sums=True)[0].registers == (2, 1, 10)
    assert first(pointwise, AVX512).around != (1, 1, 1)


def test_depthwise_sums_and_weights_of_a_chunk_fit_the_registers() -> None:
    for kernel, columns in ((3, 80), (5, 80), (5, 20)):
        depthwise = Extents(16, 5, columns, (kernel, kernel), 64, DEPTHWISE)
        blocks, rows, pixels = tilings(depthwise, AVX512, keeps_sums=True)[0].registers
        assert rows == 1
        assert blocks * (pixels + kernel) <= AVX512
