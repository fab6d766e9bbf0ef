"""Code for a GPU: its identifiers, the options of TVM's lowering, and what a kernel takes of a block."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from fractune_core.errors import FractuneError
from fractune_workers.children.building import cuda
from fractune_workers.children.building.cuda import (
    TooLarge,
    build_archive,
    lowering_context,
    with_fresh_reads,
    with_identifiers,
)
from fractune_workers.children.tvm_api import keep_out
from fractune_workers.children.tvm_api.artifacts import unpack
from fractune_workers.children.tvm_api.cuda_target import ASYNC_COPIES, shared_bytes_at_launch
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus
from fractune_workers.children.tvm_api.target import parse_target


class _Recorder:
    """In place of a compiler: it keeps the source."""

    name, archs = "recorder", (90,)

    def __init__(self) -> None:
        self.source = ""

    def compile(self, source: str, arch: str, *, fast_math: bool) -> bytes:
        del arch, fast_math
        self.source = source
        return b"\x7fELF"


def _bound(*names: str) -> tvm.IRModule:
    """The sum of inputs of these names, with threads."""
    inputs = [te.placeholder((64,), name=name) for name in names]
    total = te.compute((64,), lambda i: sum((each[i] for each in inputs[1:]), inputs[0][i]), name="total")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([*inputs, total])}))
    (loop,) = sch.get_loops(sch.get_sblock("total"))
    block, thread = sch.split(loop, [None, 32])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch.mod


def test_the_source_has_identifiers_that_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "TVM_COMPILE_FORCE_FALLBACK"):
        monkeypatch.setenv(name, "")  # what is set below is gone after the test
    stay_off_gpus()
    recorder = _Recorder()
    build_archive(_bound("gpu_0/data:0", "gpu_0-data:0", "1", "größe"), parse_target("cuda:sm_90", 1), recorder)
    signature = re.search(r"\(([^)]*)\);", recorder.source)
    assert signature is not None
    pointers = re.findall(r"__restrict__ ([^,]+)", signature[1])
    assert len(set(pointers)) == len(pointers) == 5
    assert all(re.fullmatch(r"[A-Za-z_]\w*", pointer, re.ASCII) for pointer in pointers), pointers


def test_a_module_with_such_names_only_stays_as_it_is() -> None:
    mod = _bound("left", "right")
    assert with_identifiers(mod)["main"].same_as(mod["main"])


STORAGE, ASYNC = "tirx.disable_storage_rewrite", "tirx.use_async_copy"


def staged(sums: str, annotation: str = "") -> tvm.IRModule:
    """Tiles of float16 operands, and of sums in the type `sums`, in dynamic shared memory."""
    data = te.placeholder((64, 64), "float16", "data")
    k = te.reduce_axis((0, 64), "k")
    rows = te.compute((64,), lambda i: te.sum(data[i, k].astype(sums), k), "rows")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([data, rows])}))
    copy = sch.cache_read("rows", 0, "shared.dyn")
    sch.cache_write("rows", 0, "shared.dyn")
    if annotation:
        sch.annotate(sch.get_loops(copy)[0], annotation, 1)
    return sch.mod


@pytest.mark.parametrize(
    ("mod", "needed"),
    [
        pytest.param(staged("float16"), [], id="none"),
        pytest.param(staged("float32"), [STORAGE], id="tiles of two types are kept apart"),
        pytest.param(staged("float16", ASYNC_COPIES), [ASYNC], id="copies are asynchronous"),
        pytest.param(
            staged("float16", "software_pipeline_async_stages"), [], id="a pipeline alone copies by registers"
        ),
    ],
)
def test_options_follow_from_the_schedule_and_others_stay(mod: tvm.IRModule, needed: list[str]) -> None:
    with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_vectorize": True}):
        context = lowering_context(mod)
    assert context.opt_level == 3
    assert dict(context.config) == {"tirx.disable_vectorize": True, **dict.fromkeys(needed, True)}


def test_a_vector_is_read_again_behind_a_barrier() -> None:
    """TVM's generator names a read of memory once; `test_executed_kernels.py` runs such kernels."""
    read = "  float2 v_1 = *(float2*)(((float*)tile) + (((int)threadIdx.x) * 2));"
    again = read.replace("float2 v_1", "v_1", 1)
    use, barrier, other = "  one.x = (half)(v_1.x);", "  __syncthreads();", "  two.x = v_10.x;"
    assert with_fresh_reads(f"{read}\n{use}\n") == f"{read}\n{use}\n"
    given = [read, use, barrier, other, use, read, use, "}", use]
    assert with_fresh_reads("\n".join(given)).splitlines() == [*given[:4], again, *given[4:]]


ELEMENTS = 1 << 16


@dataclass
class NoCompiler:
    """A compiler that makes nothing of anything, and says what it was given."""

    given: list[tuple[str, bool]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    name: str = "none"
    archs: Sequence[int] = (90,)

    def compile(self, source: str, arch: str, *, fast_math: bool) -> bytes:
        self.sources.append(source)
        self.given.append((arch, fast_math))
        return b"code for " + arch.encode()


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in keep_out._NO_GPU.items():
        monkeypatch.setenv(name, value)


def target(**changes: Any) -> tvm.target.Target:
    block = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
    return tvm.target.Target({"kind": "cuda", "arch": "sm_90", **block, **changes})


def kernel(threads: tuple[int, int] = (8, 4), shared: int = 1, scope: str = "shared") -> tvm.IRModule:
    """Adds one to each element, `threads` (x, y) at a time, through `shared` times as many in shared memory."""
    data = te.placeholder((ELEMENTS,), name="data")
    out = te.compute((ELEMENTS,), lambda i: data[i] + 1.0, name="out")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([data, out])}))
    block = sch.get_sblock("out")
    copy = sch.cache_read(block, 0, scope)
    grid, tile, y, x = sch.split(sch.get_loops(block)[0], [None, shared, threads[1], threads[0]])
    for loop, axis in ((grid, "blockIdx.x"), (y, "threadIdx.y"), (x, "threadIdx.x")):
        sch.bind(loop, axis)
    sch.compute_at(copy, grid)
    inner = sch.get_loops(copy)[-1]
    _, copy_x = sch.split(inner, [None, threads[0]])
    sch.bind(copy_x, "threadIdx.x")
    assert tile is not None
    return sch.mod


def test_a_kernel_that_fits_becomes_host_code_and_device_code() -> None:
    compiler = NoCompiler()
    members = unpack(cuda.build_archive(kernel(), target(), compiler))
    assert list(members) == ["host.o", "device.o"]
    assert all(member.startswith(b"\x7fELF") for member in members.values())
    assert b"code for sm_90" in members["device.o"]
    assert b"__CUDACC_RTC__" not in members["device.o"], "no source travels"
    assert compiler.given == [("sm_90", False)]
    assert "main_kernel" in compiler.sources[0]


def test_fast_math_is_the_targets_choice() -> None:
    compiler = NoCompiler()
    cuda.build_archive(kernel(), target(keys=["cuda", "gpu", "fast-math"]), compiler)
    assert compiler.given == [("sm_90", True)]


@pytest.mark.parametrize(
    ("needs", "limits", "words"),
    [
        ({"threads": (32, 4)}, {"max_threads_per_block": 127}, "needs 128 threads per block; the target has 127"),
        ({"threads": (64, 32)}, {}, "needs 2048 threads per block; the target has 1024"),
        (
            {"threads": (32, 1), "shared": 8},
            {"max_shared_memory_per_block": 1023},
            "needs 1024 bytes of static shared memory per block; the target has 1023",
        ),
    ],
)
def test_a_kernel_that_needs_too_much_never_meets_the_compiler(
    needs: dict[str, Any], limits: dict[str, int], words: str
) -> None:
    compiler = NoCompiler()
    with pytest.raises(TooLarge, match=rf"^main_kernel {words}$"):
        cuda.build_archive(kernel(**needs), target(**limits), compiler)
    assert compiler.given == []


@pytest.mark.parametrize(
    ("needs", "limits"),
    [
        ({"threads": (32, 4)}, {"max_threads_per_block": 128}),
        ({"threads": (32, 1), "shared": 8}, {"max_shared_memory_per_block": 1024}),
    ],
)
def test_a_limit_may_be_met(needs: dict[str, Any], limits: dict[str, int]) -> None:
    assert cuda.build_archive(kernel(**needs), target(**limits), NoCompiler())


@pytest.mark.parametrize(
    ("arch", "static", "there"),
    [
        ("sm_90a", 49152, 227 * 1024),
        ("sm_86", 49152, 99 * 1024),
        ("sm_90", 16384, 16384),
        ("sm_999", 49152, 49152),
        ("sm_75", 100_000, 100_000),
    ],
)
def test_more_may_be_asked_for_at_launch_unless_the_target_says_less(arch: str, static: int, there: int) -> None:
    assert shared_bytes_at_launch(arch, static) == there


def test_memory_asked_for_at_launch_has_a_limit_of_its_own() -> None:
    """The default of a matrix product in half precision takes such memory, more than there is of the static kind."""
    large = kernel(threads=(32, 1), shared=512, scope="shared.dyn")
    assert cuda.build_archive(large, target(), NoCompiler())
    with pytest.raises(TooLarge, match=r"needs 65536 bytes of shared memory per block; the target has 49152"):
        cuda.build_archive(large, target(arch="sm_999"), NoCompiler())
    with pytest.raises(TooLarge, match=r"needs 65536 bytes of static shared memory per block; the target has 49152"):
        cuda.build_archive(kernel(threads=(32, 1), shared=512), target(), NoCompiler())


def test_an_operator_without_threads_gets_tvms_own_schedule() -> None:
    data = te.placeholder((ELEMENTS,), name="data")
    out = te.compute((ELEMENTS,), lambda i: data[i] + 1.0, name="out")
    mod = tvm.IRModule({"main": te.create_prim_func([data, out])})
    with pytest.raises(FractuneError, match="there is no kernel"):
        cuda.build_archive(mod, target(), NoCompiler())
    before = mod.script()
    scheduled = cuda.scheduled_by_default(mod, target())
    assert mod.script() == before, "the workload itself stays as it is"
    assert cuda.build_archive(scheduled, target(), NoCompiler())


def test_a_build_cannot_see_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("TVM_COMPILE_FORCE_FALLBACK")
    keep_out.stay_off_gpus()
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TVM_COMPILE_FORCE_FALLBACK"]) == ("", "1")
