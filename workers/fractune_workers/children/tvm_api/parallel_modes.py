"""Parallel loops compute in the floating-point mode of the thread that launches them.

The mode holds the rounding, and whether numbers below the smallest normal one count as zero. Every thread has one of
its own, on x86-64 in the register MXCSR. Each thread of TVM's pool takes the mode of the launching thread for the time
of the loop: the pool may serve other code as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from fractune_workers.children.tvm_api.target import architecture

_PIPELINE = "fractune"
_LAUNCH = "pragma_parallel_launch_point"
"""TVM's attribute: all threads run what it holds, and share the parallel loop in it"""
_READ, _WRITE = "llvm.x86.sse.stmxcsr", "llvm.x86.sse.ldmxcsr"
_TRUSTED = {"tirx.disable_assert": True}
"""Kernels do not check their arguments: a model checks its inputs once, and arguments of a measurement follow the
operator's description. The checks took a fifth of a build, and half of its code."""


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
