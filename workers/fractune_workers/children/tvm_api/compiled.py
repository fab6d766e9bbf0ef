"""Scheduled TIR becomes an object file. A kernel that was measured serves in a bundle too, under another name.

Its parallel loops compute in the floating-point mode of the thread that launches them. The mode holds the rounding, and
whether numbers below the smallest normal one count as zero. Every thread has one of its own, on x86-64 in the register
MXCSR. Each thread of TVM's pool takes the mode of the launching thread for the time of the loop: the pool may serve
other code as well.
"""

import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.target.codegen import llvm_version_major

from fractune_core import __version__
from fractune_core.names import digest_of
from fractune_workers.children.tvm_api.arrays import ANCHOR_SIZE, LOOP_SIZE
from fractune_workers.children.tvm_api.byte_products import with_byte_products
from fractune_workers.children.tvm_api.prefetches import with_convolution_prefetches, with_product_prefetches
from fractune_workers.children.tvm_api.target import architecture

_PIPELINE = "fractune"
_LAUNCH = "pragma_parallel_launch_point"
"""TVM's attribute: all threads run what it holds, and share the parallel loop in it"""
_READ, _WRITE = "llvm.x86.sse.stmxcsr", "llvm.x86.sse.ldmxcsr"
_TRUSTED = {"tirx.disable_assert": True}
"""Kernels do not check their arguments: a model checks its inputs once, and arguments of a measurement follow the
operator's description. The checks took a fifth of a build, and half of its code."""


def build_object(mod: Any, target: Any) -> bytes:
    """Compile a TIR module to one object file. Raises whatever TVM raises."""
    return object_of(ready(mod, target), target)


def build_assembly(mod: Any, target: Any) -> str:
    """The same code as text, in the assembly of the target's processor. Raises whatever TVM raises."""
    return str(_compiled(ready(mod, target), target).inspect_source("asm"))


def ready(mod: Any, target: Any) -> Any:
    """The module as `object_of` takes it."""
    wide = with_product_prefetches(with_byte_products(mod, target))
    return RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(wide)


def object_of(mod: Any, target: Any) -> bytes:
    return written(_compiled(mod, target))


def _compiled(mod: Any, target: Any) -> Any:
    return build_library(with_convolution_prefetches(mod), target)


def written(library: Any) -> bytes:
    """The object file of a compiled library."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.o"
        library.write_to_file(str(path), "o")
        return path.read_bytes()


# A kernel by its content.

_SCHEDULED = "tirx.is_scheduled"
_NAME = "global_symbol"


def kernel_digest(mod: Any) -> str:
    """Names the one kernel of a module that is `ready`: the same digits for equal kernels of any name, in every process
    with these versions. Empty for another module.
    """
    if len(mod.functions) != 1:
        return ""
    bare = next(iter(mod.functions.values())).without_attr(_NAME).without_attr(_SCHEDULED)
    versions = __version__, tvm.__version__, str(llvm_version_major())
    return digest_of(*versions, str(tvm_ffi.structural_hash(bare)))


_SYMBOL = b"__tvm_ffi_"
"""how the symbols of functions begin"""
_SECTIONS_AT, _SECTION_COUNT_AT = 40, 60
"""in the header of the file"""
_CONTENT_AT, _SECTION_BYTES, _SYMBOL_BYTES, _SYMBOL_TABLE = 24, 64, 24, 2


def renamed(code: bytes, name: str) -> bytes:
    """The object file (ELF of 64 bits, little-endian) of a kernel `main`, whose function gets this name."""
    (sections_at,) = struct.unpack_from("<Q", code, _SECTIONS_AT)
    (count,) = struct.unpack_from("<H", code, _SECTION_COUNT_AT)
    changed = bytearray(code)
    for section in range(sections_at, sections_at + count * _SECTION_BYTES, _SECTION_BYTES):
        kind, at, size, names = struct.unpack_from("<4xI16xQQI", code, section)
        if kind != _SYMBOL_TABLE:
            continue
        texts = sections_at + names * _SECTION_BYTES + _CONTENT_AT
        texts_at, texts_bytes = struct.unpack_from("<QQ", code, texts)
        for symbol in range(at, at + size, _SYMBOL_BYTES):
            (begin,) = struct.unpack_from("<I", code, symbol)
            if code.startswith(_SYMBOL + b"main\0", texts_at + begin):
                struct.pack_into("<I", changed, symbol, texts_bytes)
                more = code[texts_at : texts_at + texts_bytes] + _SYMBOL + name.encode() + b"\0"
                struct.pack_into("<QQ", changed, texts, len(changed), len(more))
                changed += more
    return bytes(changed)


def build_library(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """`tvm.tirx.build` of scheduled functions, with their parallel loops in the mode of the launching thread. Code for
    another processor than x86-64 is TVM's own.
    """
    around = tvm.transform.PassContext.current()
    with tvm.transform.PassContext(opt_level=around.opt_level, config={**around.config, **_TRUSTED}):
        return tvm.tirx.build(mod, target, _PIPELINE if architecture(target) == "x86_64" else "default")


def _pipeline() -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    lower, finalize_host, finalize_device = tvm.tirx.get_tir_pipeline("default")
    return tvm.transform.Sequential([lower, _keep_modes]), finalize_host, finalize_device


tvm.tirx.register_tir_pipeline(_PIPELINE, _pipeline)


@tirx.transform.prim_func_pass(opt_level=0)
def _keep_modes(function: Any, _mod: Any, _context: Any) -> Any:
    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, _in_mode)))


def _in_mode(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    launching, own = (tirx.decl_buffer([1], "uint32", name, scope="local") for name in ("launching_mode", "own_mode"))
    on_each_thread = [
        tirx.AllocBuffer(own),
        _access(_READ, own),
        _access(_WRITE, launching),
        loop,
        _access(_WRITE, own),
    ]
    launch = tirx.AttrStmt(loop.loop_var, _LAUNCH, 1, tirx.SeqStmt(on_each_thread))
    return tirx.SeqStmt([tirx.AllocBuffer(launching), _access(_READ, launching), launch])


def _access(intrinsic: str, mode: Any) -> Any:
    """Read the thread's mode into memory, or write it from there."""
    return tirx.Evaluate(tirx.call_llvm_intrin("void", intrinsic, tirx.address_of(tirx.BufferLoad(mode, [0]))))


# Kernels that a process which measures on a CPU needs for itself, as object files: they can be built elsewhere.


def anchor_object(target: Any) -> bytes:
    """A matrix product, the anchor; its arguments are ANCHOR_ARGUMENTS."""
    left = te.placeholder((ANCHOR_SIZE, ANCHOR_SIZE), name="left")
    right = te.placeholder((ANCHOR_SIZE, ANCHOR_SIZE), name="right")
    k = te.reduce_axis((0, ANCHOR_SIZE), name="k")
    product = te.compute(
        (ANCHOR_SIZE, ANCHOR_SIZE), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="product"
    )
    return build_object(tvm.IRModule({"main": te.create_prim_func([left, right, product])}), target)


def loop_object(target: Any) -> bytes:
    """A parallel loop, which starts every thread of TVM's pool; its arguments are LOOP_ARGUMENTS."""
    empty = te.placeholder((LOOP_SIZE,), name="empty")
    fill = te.compute((LOOP_SIZE,), lambda i: empty[i] + 1.0, name="fill")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([empty, fill])}))
    sch.parallel(sch.get_loops(sch.get_sblock("fill"))[0])
    return build_object(sch.mod, target)
