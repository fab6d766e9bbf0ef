"""The design space of an operator: MetaSchedule's, or ours for Winograd and for whole numbers."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms

from fractune_workers.children.searching.spaces import integers, rows, winograd
from fractune_workers.children.searching.spaces.accumulators import FitsRegisters
from fractune_workers.children.searching.spaces.shared_memory import FitsSharedMemory
from fractune_workers.children.tvm_api.intrinsics import prepare_tensor_cores
from fractune_workers.children.tvm_api.target import vector_unit

_JOBS_A_CORE = 16
_UNROLL_STEPS = [0, 16, 64, 512]
"""MetaSchedule's own for CPUs"""


def space_for(workload: Any, target: tvm.target.Target) -> Any:
    """The space generator.

    For a CPU, loops are vectorized as wide as a register, where MetaSchedule takes up to 64 elements. An epilogue that
    is wider than the accumulators prevents LLVM from holding them in registers. For a GPU, MetaSchedule would by itself
    take the space with tensor cores for everything, threads with more sums than registers, and static memory alone.
    """
    if target.kind.name == "cuda":
        kind = "cuda-tensorcore" if prepare_tensor_cores(workload, target) else "cuda"
        of_gpus = ms.TuneContext(mod=workload.mod, target=target, space_generator=kind).space_generator
        return _changed(of_gpus, postprocs=[FitsRegisters(), *map(_with_own_limits, of_gpus.postprocs)])
    usual = ms.TuneContext(mod=workload.mod, target=target, space_generator="post-order-apply").space_generator
    if winograd.is_winograd(workload.mod):
        return winograd.space(usual)
    lanes = vector_unit(target).lanes
    if rows.row_shape(workload.mod, lanes):
        return rows.space(workload.mod, usual, lanes)
    if integers.is_integer(workload.mod):
        return integers.space(usual, workload.mod, target)
    return _changed(usual, sch_rules=[_narrow(target) if _vectorizes(rule) else rule for rule in usual.sch_rules])


def _changed(space: Any, **changes: Any) -> Any:
    kept = {name: getattr(space, name) for name in ("sch_rules", "postprocs", "mutator_probs")}
    return ms.space_generator.PostOrderApply(**{**kept, **changes})


def _with_own_limits(postproc: Any) -> Any:
    return FitsSharedMemory() if isinstance(postproc, ms.postproc.VerifyGPUCode) else postproc


def _vectorizes(rule: Any) -> bool:
    return isinstance(rule, ms.schedule_rule.ParallelizeVectorizeUnroll)


def _narrow(target: tvm.target.Target) -> Any:
    return ms.schedule_rule.ParallelizeVectorizeUnroll(
        max_jobs_per_core=_JOBS_A_CORE,
        max_vectorize_extent=vector_unit(target).lanes,
        unroll_max_steps=_UNROLL_STEPS,
        unroll_explicit=True,
    )
