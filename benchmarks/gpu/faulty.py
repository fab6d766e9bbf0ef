"""The child that builds candidates which go wrong on a GPU, and good ones: TVM's kernels with a fault in their source.

All are schedules of one operator, `out = a * b + a`, built as a job's candidates are; just before the compiler sees its
CUDA source, the fault is written at the beginning of the kernel. Building needs no GPU.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fractune_workers.cuda.compilers import CudaCompiler

SIZE = 1 << 16
"""numbers in each tensor: three tensors fit into one piece of memory of CUDA's allocator, so a write just beyond one
does not fault"""
ARGS_INFO = [["TENSOR", "float32", [SIZE]]] * 3
GOOD, ADDRESS, HANG, CORRUPT = "good", "illegal address", "hang", "corrupted memory"
FAULTS = (ADDRESS, HANG, CORRUPT)
_KERNEL = re.compile(r"__global__ void[^;{]*?\w+\((?P<parameters>[^;{]*)\)\s*\{")
_POINTER = re.compile(r"\*\s*(?:__restrict__\s+)?(\w+)")
_WARP_THREADS, _MOST_WARPS = 32, 32


def spoilt(source: str, kind: str, number: int) -> str:
    """The CUDA source with the fault `kind` in its kernel; `number` makes its machine code unique."""
    if kind == GOOD:
        return source
    kernel = _KERNEL.search(source)
    if kernel is None:
        raise ValueError("no kernel in the source")
    pointers = _POINTER.findall(kernel["parameters"])
    return source[: kernel.end()] + f"\n  {_statements(kind, number, pointers)}\n" + source[kernel.end() :]


def _statements(kind: str, number: int, pointers: Sequence[str]) -> str:
    if kind == ADDRESS:
        return f"*(volatile int*)({64 * number + 16}ull) = 1;"
    if kind == HANG:  # no counter of cycles is ever so low again
        return f"while (clock64() != {number}ll) {{}}"
    places = ("threadIdx.x", f"{SIZE} + threadIdx.x % 32")
    writes = [f"((volatile float*){name})[{place}] = {number}.0f;" for name in pointers for place in places]
    return " ".join([*writes, "return;"])


@dataclass(frozen=True)
class Spoiling:
    """A compiler that compiles another source than the requested one."""

    compiler: CudaCompiler
    spoil: Callable[[str], str]

    @property
    def name(self) -> str:
        return self.compiler.name

    @property
    def archs(self) -> Sequence[int]:
        return self.compiler.archs

    def compile(self, source: str, arch: str, *, fast_math: bool) -> bytes:
        return self.compiler.compile(self.spoil(source), arch, fast_math=fast_math)


def build(kind: str, number: int, target: str) -> dict[str, bytes]:
    """The archive, as `object`, of candidate `number` for `target` (`cuda:sm_90`): `GOOD`, or with a fault."""
    from fractune_workers.children.building.cuda import build_archive
    from fractune_workers.children.tvm_api.cuda_target import compiler_for
    from fractune_workers.children.tvm_api.target import parse_target

    parsed = parse_target(target, 1)
    compiler = Spoiling(compiler_for(parsed), lambda source: spoilt(source, kind, number))
    return {"object": build_archive(_scheduled(number), parsed, compiler)}


def _scheduled(number: int) -> Any:
    """The operator by schedule `number`: no two of the first few hundred are the same."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    a, b = (te.placeholder((SIZE,), name=name) for name in ("a", "b"))
    out = te.compute((SIZE,), lambda i: a[i] * b[i] + a[i], name="out")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, out])}))
    (loop,) = sch.get_loops(sch.get_sblock("out"))
    each, threads = 1 + number // _MOST_WARPS, _WARP_THREADS * (1 + number % _MOST_WARPS)
    block, thread, _ = sch.split(loop, [None, threads, each])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch.mod


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    from fractune_workers.children.tvm_api.keep_out import stay_off_gpus

    stay_off_gpus()
    return {"build": build}
