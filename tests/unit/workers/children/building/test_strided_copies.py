"""Asynchronous copies for a GPU copy the numbers that the schedule names, also where a vector of them has a stride."""

import re

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.script import ir as I, tirx as T

from fractune_core.errors import FractuneError
from fractune_workers.children.building.cuda import build_archive, lowered
from fractune_workers.children.tvm_api.cuda_target import ASYNC_COPIES
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus
from fractune_workers.children.tvm_api.target import parse_target

SIZE, TILE, VECTOR = 64, 16, 4


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "TVM_COMPILE_FORCE_FALLBACK"):
        monkeypatch.setenv(name, "")  # what is set below is gone after the test
    stay_off_gpus()


def product(dtype: str, strided: str) -> tvm.IRModule:
    """Sums of `left * right` over columns of both, a thread for each. Tiles of both are copied asynchronously:
    by vectors along a row, and along a column of the operand `strided`.
    """
    left, right = (te.placeholder((SIZE, SIZE), dtype, name) for name in ("left", "right"))
    k = te.reduce_axis((0, SIZE), "k")
    sums = te.compute((SIZE,), lambda i: te.sum(left[k, i] * right[k, i], k), "sums")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([left, right, sums])}))
    block = sch.get_sblock("sums")
    i, k_loop = sch.get_loops(block)
    sch.bind(i, "threadIdx.x")
    tiles, _ = sch.split(k_loop, [None, TILE])
    for at, name in enumerate(("left", "right")):
        copy = sch.cache_read(block, at, "shared")
        sch.compute_at(copy, tiles)
        rows, columns = sch.get_loops(copy)[-2:]
        if name == strided:
            sch.reorder(columns, rows)
            rows, columns = columns, rows
        sch.vectorize(sch.split(columns, [None, VECTOR])[1])
    for name, value in {"stage": [0, 0, 1], "order": [0, 1, 2], "async_stages": [0]}.items():
        sch.annotate(tiles, f"software_pipeline_{name}", value)
    sch.annotate(tiles, ASYNC_COPIES, 1)
    return sch.mod


class _Recorder:
    """In place of a compiler: it keeps the source."""

    name, archs = "recorder", (90,)
    source = ""

    def compile(self, source: str, arch: str, *, fast_math: bool) -> bytes:
        del arch, fast_math
        self.source = source
        return b"\x7fELF"


def copies(mod: tvm.IRModule) -> set[tuple[str, int]]:
    """The operands that are copied asynchronously, with the bytes of a copy."""
    recorder = _Recorder()
    build_archive(mod, parse_target("cuda:sm_90", 1), recorder)
    found = re.findall(r"^ +ptx_cp_async_legacy_\w\w_(\d+)_\w+\(.*?, (\w+?)_ptr, ", recorder.source, re.MULTILINE)
    return {(name, int(size)) for size, name in found}


@pytest.mark.parametrize(
    ("dtype", "strided", "expected"),
    [
        pytest.param("float32", "", {("left", 16), ("right", 16)}, id="vectors along rows are copied whole"),
        pytest.param("float32", "right", {("left", 16), ("right", 4)}, id="numbers of four bytes by themselves"),
        pytest.param("float16", "left", {("right", 8)}, id="smaller ones through registers"),
    ],
)
def test_a_vector_with_a_stride_is_not_copied_as_one_without(
    dtype: str, strided: str, expected: set[tuple[str, int]]
) -> None:
    assert copies(product(dtype, strided)) == expected


def test_what_would_still_be_copied_wrongly_is_not_built() -> None:
    """The copy sees the operand under another name: no schedule of ours makes one."""

    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(a: T.Buffer((256,), "float32"), b: T.Buffer((64,), "float32")) -> None:
            tile = T.sblock_alloc_buffer((64,), scope="shared")
            for i in T.thread_binding(16, "threadIdx.x", annotations={ASYNC_COPIES: 1}):
                with T.attr("default", "async_scope", 1):
                    for v in T.vectorized(4):
                        with T.sblock("copy"):
                            at, number = T.axis.remap("SS", [i, v])
                            part = T.match_buffer(a[at * 16 : at * 16 + 16], (16,), offset_factor=1)
                            tile[at * 4 + number] = part[number * 4]
                for v in range(4):
                    with T.sblock("use"):
                        at, number = T.axis.remap("SS", [i, v])
                        b[at * 4 + number] = tile[at * 4 + number]

    target = parse_target("cuda:sm_90", 1)
    bound = tvm.tirx.transform.BindTarget(target.with_host(tvm.target.Target("llvm")))(Module)
    with target, pytest.raises(FractuneError, match="copies vectors of 'a' with a stride into shared memory"):
        lowered(bound, tvm.tirx.get_default_tir_pipeline(target)[0])
