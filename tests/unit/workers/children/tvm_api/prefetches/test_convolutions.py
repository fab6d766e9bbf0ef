"""Prefetches of convolutions: while a tile of weights is used, the next one is requested; results stay the same."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule

from fractune_core.tir.canonical import CONV
from fractune_workers.children.layouts.kernels.direct import Window, conv2d
from fractune_workers.children.tvm_api.prefetches import with_convolution_prefetches
from tests.support.unoptimized import run_kernel

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2})
BLOCKS, ROWS, DEPTH, LANES = 16, 14, 512, 16
TILE = DEPTH * LANES


def scheduled(blocks: int = BLOCKS, *, fused: bool = False, rows_first: bool = False) -> tvm.IRModule:
    """A convolution (1 x 1) in tiles of two rows, each tile of weights for all rows. `fused`: the loops over blocks and
    rows are one. `rows_first`: all weights are read again for each tile of rows.
    """
    shapes = (1, DEPTH // LANES, ROWS, 1, LANES), (blocks, DEPTH // LANES, 1, 1, LANES, LANES)
    data, weight = map(te.placeholder, shapes)
    output = conv2d(data, weight, Window((1, 1), (0, 0, 0, 0), (1, 1)))
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([data, weight, output])}))
    block = sch.get_sblock(CONV)
    _, column, row, _, lane, outer, _, _, middle = sch.get_loops(block)
    around, inner = sch.split(row, [None, 2])
    outside = (around, column) if rows_first else (column, around)
    sch.reorder(*outside, outer, middle, inner, lane)
    sch.vectorize(lane)
    if fused:
        sch.parallel(sch.fuse(*outside))
    sch.decompose_reduction(block, outer)
    return sch.mod


def requested(mod: tvm.IRModule) -> dict[int, list[int]]:
    """The elements of the weights that are prefetched, by the iteration of the outermost loop."""
    found: dict[int, list[int]] = {}

    def look(part: Any, loops: tuple[Any, ...]) -> None:
        if isinstance(part, tirx.For):
            look(part.body, (*loops, part))
        elif isinstance(part, tirx.SeqStmt):
            for each in part.seq:
                look(each, loops)
        elif isinstance(part, tirx.Evaluate):
            *_, element = part.value.args[0].args[0].indices
            for at in product(*(range(int(loop.extent)) for loop in loops)):
                values = dict(zip((loop.loop_var for loop in loops), at, strict=True))
                found.setdefault(at[0], []).append(number(element, values))

    look(mod["main"].body, ())
    return found


def number(expression: Any, values: dict[Any, int]) -> int:
    replaced = tvm_ffi.structural_map(expression, (tvm.ir.Var, lambda var: tirx.const(values[var], "int64")))
    return int(tvm.sym.Analyzer().simplify(replaced))


def test_each_tile_requests_all_of_the_next_one() -> None:
    found = requested(with_convolution_prefetches(scheduled()))
    assert all(set(found[block]) == lines_of(block + 1) for block in range(BLOCKS))


def test_a_fused_loop_over_blocks_and_rows_requests_the_same() -> None:
    found = requested(with_convolution_prefetches(scheduled(fused=True)))
    steps = ROWS // 2
    for block in range(BLOCKS):
        parts = [set(found[block * steps + step]) for step in range(steps)]
        assert set().union(*parts) == lines_of(block + 1)
        assert max(map(len, parts)) < len(lines_of(block)) / 2


def lines_of(block: int) -> set[int]:
    return set(range(block * TILE, (block + 1) * TILE, 16))


@pytest.mark.parametrize("fused", [False, True])
def test_results_stay_the_same(*, fused: bool) -> None:
    rng = np.random.default_rng(0)
    data = rng.random((1, DEPTH // LANES, ROWS, 1, LANES), "float32")
    weight = rng.random((BLOCKS, DEPTH // LANES, 1, 1, LANES, LANES), "float32")
    output = np.zeros((1, BLOCKS, ROWS, 1, LANES), "float32")
    found = run_kernel(with_convolution_prefetches(scheduled(fused=fused)), TARGET, data, weight, output)
    expected = np.einsum("ncyxi,kcrsil->nkyxl", data, weight)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "mod",
    [
        pytest.param(lambda: scheduled(blocks=4), id="few weights"),
        pytest.param(lambda: scheduled(rows_first=True), id="no tile is used again at once"),
    ],
)
def test_other_functions_stay_as_they_are(mod: Any) -> None:
    given = mod()
    assert with_convolution_prefetches(given)["main"].same_as(given["main"])
