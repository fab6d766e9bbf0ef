"""Prefetches of products: every line of the next tile once, the same results, and none where they would only cost."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule

from fractune_core.tir.canonical import MATMUL
from fractune_workers.children.layouts.kernels import direct
from fractune_workers.children.tvm_api.prefetches import FROM_MEMORY_BYTES, with_product_prefetches
from tests.support.unoptimized import run_kernel

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
ROWS, DEPTH, LANES = 10, 512, 8
BLOCKS = FROM_MEMORY_BYTES // (4 * DEPTH * LANES)
TILE_ROWS, TILE_BLOCKS, CHUNK = 2, 2, 64
LINE_NUMBERS = 64 // 4


def scheduled(rows: int = ROWS, blocks: int = BLOCKS) -> tvm.IRModule:
    data, weights = te.placeholder((rows, DEPTH), name="x"), te.placeholder((blocks, DEPTH, LANES), name="w")
    sch = Schedule(te.create_prim_func([data, weights, direct.matmul(data, weights)]))
    block = sch.get_sblock(MATMUL)
    row, column, lane, depth = sch.get_loops(block)
    rows_around, row = sch.split(row, [None, TILE_ROWS])
    around, column = sch.split(column, [None, TILE_BLOCKS])
    chunk, depth = sch.split(depth, [None, CHUNK])
    sch.reorder(around, rows_around, chunk, depth, row, column, lane)
    sch.parallel(around)
    sch.vectorize(lane)
    sch.decompose_reduction(block, chunk)
    return sch.mod


def prefetched(mod: tvm.IRModule) -> list[Any]:
    """The loads of weights that are requested, in their order."""
    calls: list[Any] = []
    tvm_ffi.structural_walk(mod["main"].body, (tvm.ir.Call, calls.append))
    return [call.args[0].args[0] for call in calls if call.op.name == "tirx.prefetch"]


def place(load: Any, turn: dict[str, int]) -> int:
    """In the flat weights, at this turn of the loops."""
    analyzer = tvm.sym.Analyzer()

    def value(var: Any) -> Any:
        return tirx.const(turn[var.name], str(var.ty.dtype))

    block, depth, lane = (
        int(analyzer.simplify(tvm_ffi.structural_map(index, (tirx.Var, value)))) for index in load.indices
    )
    return (block * DEPTH + depth) * LANES + lane


def test_each_line_of_the_next_tile_is_requested_once() -> None:
    loads = prefetched(with_product_prefetches(scheduled()))
    turns = product(range(ROWS // TILE_ROWS), range(DEPTH // CHUNK))
    found = [
        place(load, {"i1_0": 3, "i0_0": rows, "k_0": chunk}) // LINE_NUMBERS for rows, chunk in turns for load in loads
    ]
    tile = TILE_BLOCKS * DEPTH * LANES // LINE_NUMBERS
    chunks = ROWS // TILE_ROWS * (DEPTH // CHUNK)
    assert found == list(range(4 * tile, 4 * tile + len(found)))
    assert tile <= len(found) < tile + chunks


def test_the_results_are_the_same() -> None:
    rng = np.random.default_rng(0)
    plain = scheduled()
    arrays = [rng.standard_normal(shape).astype("float32") for shape in ((ROWS, DEPTH), (BLOCKS, DEPTH, LANES))]
    prefetching, output = with_product_prefetches(plain), np.zeros((ROWS, BLOCKS, LANES), "float32")
    wanted, found = (run_kernel(mod, TARGET, *arrays, output) for mod in (plain, prefetching))
    np.testing.assert_array_equal(found, wanted)
    assert "prefetch" in tvm.compile(prefetching, TARGET).mod.inspect_source("asm")


@pytest.mark.parametrize(
    "mod",
    [
        pytest.param(scheduled(blocks=BLOCKS // 2), id="small enough for a cache"),
        pytest.param(scheduled(rows=TILE_ROWS), id="weights are read once"),
        pytest.param(
            tvm.IRModule({"main": te.create_prim_func([te.placeholder((8,), name="x")])}), id="another operator"
        ),
    ],
)
def test_other_operators_stay(mod: tvm.IRModule) -> None:
    assert with_product_prefetches(mod) is mod
