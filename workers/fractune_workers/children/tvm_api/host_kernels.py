"""Kernels that a process which measures on a CPU needs for itself, as object files: they can be built elsewhere."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from fractune_workers.children.tvm_api.arrays import ANCHOR_SIZE, LOOP_SIZE
from fractune_workers.children.tvm_api.compiled import build_object


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
