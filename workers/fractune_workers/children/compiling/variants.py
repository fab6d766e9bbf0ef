"""Whole models: compile the variants of a bundle."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu_pipeline
from tvm.relax.backend.cuda import pipeline as cuda_pipeline
from tvm.s_tir import meta_schedule as ms
from tvm.tirx import PrimFunc
from tvm_ffi import StructuralKey

from fractune_core.errors import FractuneError
from fractune_workers.children.building.cuda import build_parts, device_object, packed, scheduled_by_default
from fractune_workers.children.building.embed_cubin import merged
from fractune_workers.children.building.identifiers import with_identifiers
from fractune_workers.children.building.triton_archive import build_triton_parts
from fractune_workers.children.compiling.concat_in_place import parts_in_place
from fractune_workers.children.compiling.graphs import OPTION, has_graphs, wants_graphs
from fractune_workers.children.compiling.outputs_in_place import with_entry_for_outputs
from fractune_workers.children.compiling.side_by_side import side_by_side
from fractune_workers.children.compiling.workspaces import with_planned_workspaces
from fractune_workers.children.importing.passes import is_scheduled
from fractune_workers.children.triton_kernels.marks import decisions_in, is_marked, with_decisions
from fractune_workers.children.tvm_api.artifacts import written
from fractune_workers.children.tvm_api.cuda_target import compiler_for
from fractune_workers.children.tvm_api.parallel_modes import build_library
from fractune_workers.children.tvm_api.prefetches.convolutions import with_convolution_prefetches
from fractune_workers.children.tvm_api.prefetches.products import with_product_prefetches
from fractune_workers.children.tvm_api.traces import Workload, read_trace

_KERNEL, _BYTECODE, _DEVICE = "kernel.o", "vm.o", "device.o"
_PACK = "pack"
"""of a part for a GPU: bytecode, or machine code of kernels"""
_OF_HOST = "tirx.is_host_func"
"""the attribute of functions that compute shapes"""
_HANDS_A_CORE = 2
"""Pieces of work for each core: kernels differ in size, and each piece costs a fork"""


def compile_variants(
    mods: Sequence[Any], target: Any, schedules: Sequence[dict[Workload, str]], known: dict[Any, dict[str, bytes]]
) -> list[dict[str, bytes]]:
    """Machine code and VM bytecode of prepared modules: object files by name, for each with its `schedules` (workload
    -> trace) applied.

    A module that wants CUDA graphs and has nothing to capture has no files. Equal parts are compiled once, and parts
    in `known` are not compiled. Afterwards `known` holds these parts alone.
    Raises FractuneError when a schedule finds no operator: then the passes of ingest and compile have come apart; and
    for a GPU when this machine has no CUDA compiler.
    """
    lowered = [_lowered(mod, target, each) for mod, each in zip(mods, schedules, strict=True)]
    needless = [wants_graphs(mod) and not has_graphs(each) for mod, each in zip(mods, lowered, strict=True)]
    parts = [
        {} if skip else {_key(part): part for part in _parts(each)}
        for skip, each in zip(needless, lowered, strict=True)
    ]
    new = {key: part for each in parts for key, part in each.items() if key not in known}
    code = {**known, **dict(zip(new, _compiled(list(new.values()), target), strict=True))}
    known.clear()
    known.update({key: code[key] for each in parts for key in each})
    variants = [
        {f"{place}-{name}": made for place, key in enumerate(each) for name, made in known[key].items()}
        for each in parts
    ]
    for_gpu = target.kind.name == "cuda"
    return [_one_device_object(each, target) if for_gpu and each else each for each in variants]


def _lowered(mod: Any, target: Any, schedules: dict[Workload, str]) -> Any:
    """The module with its schedules applied, after all passes over Relax."""
    for_gpu = target.kind.name == "cuda"
    pipeline = cuda_pipeline if for_gpu else cpu_pipeline
    database = ms.database.MemoryDatabase()
    decided = {workload: text for workload, text in schedules.items() if is_marked(workload.mod["main"])}
    for workload, trace in schedules.items():
        if workload in decided:
            continue
        entry = database.commit_workload(workload.mod)
        record = ms.database.TuningRecord(read_trace(trace, workload).trace, entry, [1.0], target, None)
        database.commit_tuning_record(record)
    scheduled_before = _scheduled(mod)
    with target, database, tvm.transform.PassContext(opt_level=3, config={OPTION: wants_graphs(mod)}):
        mod = relax.transform.MetaScheduleApplyDatabase()(with_decisions(mod, decided))
        _check_applied(_scheduled(mod) - scheduled_before, len(schedules))
        if for_gpu:
            mod = with_identifiers(scheduled_by_default(mod, target))
        mod = parts_in_place(tvm.transform.Sequential(pipeline.dataflow_lower_passes(target))(mod))
        mod = with_planned_workspaces(mod, target) if for_gpu else with_entry_for_outputs(with_product_prefetches(mod))
        return tvm.transform.Sequential(pipeline.finalize_passes(target))(mod)


def _parts(mod: Any) -> list[Any]:
    """Modules that are compiled apart: what is not a kernel, and each kernel. Most variants have most in common."""
    kernels = {var: each for var, each in mod.functions.items() if isinstance(each, PrimFunc)}
    others = {var: each for var, each in mod.functions.items() if var not in kernels}
    return [tvm.IRModule(others, attrs=mod.attrs), *(tvm.IRModule({var: each}) for var, each in kernels.items())]


def _key(part: Any) -> Any:
    """Equal for parts that are equal, names included."""
    return StructuralKey(part)  # type: ignore[call-arg]


def _compiled(parts: Sequence[Any], target: Any) -> list[dict[str, bytes]]:
    """The object files of each part, compiled on all cores."""
    hands = min(len(parts), _HANDS_A_CORE * len(os.sched_getaffinity(0)))
    made = side_by_side([partial(_compile_each, parts[hand::hands], target) for hand in range(hands)])
    return [made[place % hands][place // hands] for place in range(len(parts))]


def _compile_each(parts: Sequence[Any], target: Any) -> list[dict[str, bytes]]:
    with target, tvm.transform.PassContext(opt_level=3):
        return [_compile(part, target) for part in parts]


def _compile(part: Any, target: Any) -> dict[str, bytes]:
    """The object files of a part, and for a GPU its pack."""
    for_gpu = target.kind.name == "cuda"
    functions = part.functions.values()
    if not all(isinstance(each, PrimFunc) for each in functions):
        library = tvm.relax.build(part, target=target, relax_pipeline=None).mod
        if for_gpu:
            return {_PACK: packed(library)}
        pack = tvm.get_global_func("runtime.ModulePackImportsToLLVM")
        return {_BYTECODE: written(pack(library, False, str(target), ""))}  # noqa: FBT003  TVM's order
    for each in functions:
        if decisions := decisions_in(each):
            host, device = build_triton_parts(each, str(each.attrs["global_symbol"]), target, decisions)
            return {_KERNEL: host, _PACK: device}
    if for_gpu and not any(_OF_HOST in each.attrs for each in functions):
        host, device = build_parts(part, target, compiler_for(target))
        return {_KERNEL: host, _PACK: device}
    return {_KERNEL: written(build_library(with_convolution_prefetches(part), target))}


def _one_device_object(objects: dict[str, bytes], target: Any) -> dict[str, bytes]:
    """The object files of a variant for a GPU, with one in the place of its packs: a library carries one."""
    packs = [made for name, made in objects.items() if name.endswith(_PACK)]
    others = {name: made for name, made in objects.items() if not name.endswith(_PACK)}
    return {**others, _DEVICE: device_object(merged(packs), target)}


def _scheduled(mod: Any) -> int:
    """The number of functions of the module that have a schedule."""
    return sum(map(is_scheduled, mod.functions.values()))


def _check_applied(scheduled: int, expected: int) -> None:
    if scheduled < expected:
        raise FractuneError(f"only {scheduled} of {expected} schedules found their operator in the compiled model")
