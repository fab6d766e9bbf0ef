"""Whole models: compile the variants of a bundle."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu_pipeline
from tvm.relax.backend.cuda import pipeline as cuda_pipeline
from tvm.s_tir import meta_schedule as ms
from tvm.tirx import PrimFunc
from tvm_ffi import StructuralKey

from fractune_core.errors import FractuneError
from fractune_workers.children.building.cuda import packed_imports, scheduled_by_default, source_compiler
from fractune_workers.children.building.identifiers import with_identifiers
from fractune_workers.children.compiling.concat_in_place import parts_in_place
from fractune_workers.children.compiling.outputs_in_place import with_entry_for_outputs
from fractune_workers.children.compiling.side_by_side import side_by_side
from fractune_workers.children.importing.passes import is_scheduled
from fractune_workers.children.tvm_api.artifacts import written
from fractune_workers.children.tvm_api.convolution_prefetches import with_convolution_prefetches
from fractune_workers.children.tvm_api.cuda_target import compiler_for
from fractune_workers.children.tvm_api.product_prefetches import with_product_prefetches
from fractune_workers.children.tvm_api.traces import Workload, read_trace

_KERNEL, _BYTECODE = "kernel.o", "vm.o"
_HANDS_A_CORE = 2
"""Pieces of work for each core: kernels differ in size, and each piece costs a fork"""


def compile_variants(
    mods: Sequence[Any], target: Any, schedules: Sequence[dict[Workload, str]], known: dict[Any, dict[str, bytes]]
) -> list[dict[str, bytes]]:
    """Machine code and VM bytecode of prepared modules: object files by name, for each with its `schedules` (workload
    -> trace) applied.

    Equal parts are compiled once, and parts in `known` are not compiled. Afterwards `known` holds these parts alone.
    Raises FractuneError when a schedule finds no operator: then the passes of ingest and compile have come apart; and
    for a GPU when this machine has no CUDA compiler.
    """
    lowered = [_lowered(mod, target, each) for mod, each in zip(mods, schedules, strict=True)]
    parts = [{_key(part): part for part in _parts(mod, target)} for mod in lowered]
    new = {key: part for each in parts for key, part in each.items() if key not in known}
    code = {**known, **dict(zip(new, _compiled(list(new.values()), target), strict=True))}
    known.clear()
    known.update({key: code[key] for each in parts for key in each})
    return [
        {f"{place}-{name}": made for place, key in enumerate(each) for name, made in known[key].items()}
        for each in parts
    ]


def _lowered(mod: Any, target: Any, schedules: dict[Workload, str]) -> Any:
    """The module with its schedules applied, after all passes over Relax."""
    for_gpu = target.kind.name == "cuda"
    pipeline = cuda_pipeline if for_gpu else cpu_pipeline
    database = ms.database.MemoryDatabase()
    for workload, trace in schedules.items():
        entry = database.commit_workload(workload.mod)
        record = ms.database.TuningRecord(read_trace(trace, workload).trace, entry, [1.0], target, None)
        database.commit_tuning_record(record)
    scheduled_before = _scheduled(mod)
    with target, database, tvm.transform.PassContext(opt_level=3):
        mod = relax.transform.MetaScheduleApplyDatabase()(mod)
        _check_applied(_scheduled(mod) - scheduled_before, len(schedules))
        if for_gpu:
            mod = with_identifiers(scheduled_by_default(mod, target))
        mod = parts_in_place(tvm.transform.Sequential(pipeline.dataflow_lower_passes(target))(mod))
        if not for_gpu:
            mod = with_entry_for_outputs(with_product_prefetches(mod))
        return tvm.transform.Sequential(pipeline.finalize_passes(target))(mod)


def _parts(mod: Any, target: Any) -> list[Any]:
    """Modules that are compiled apart. Most variants have most kernels in common, so on a CPU each kernel is a part; on
    a GPU the kernels of a variant are one CUDA source.
    """
    if target.kind.name == "cuda":
        return [mod]
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
    if all(isinstance(each, PrimFunc) for each in part.functions.values()):
        return {_KERNEL: written(tvm.tirx.build(with_convolution_prefetches(part), target=target))}
    library = tvm.relax.build(part, target=target, relax_pipeline=None)
    if target.kind.name == "cuda":
        return _export(library, _packer(target))
    pack = tvm.get_global_func("runtime.ModulePackImportsToLLVM")
    return {_BYTECODE: written(pack(library.mod, False, str(target), ""))}  # noqa: FBT003  TVM's order


def _scheduled(mod: Any) -> int:
    """The number of functions of the module that have a schedule."""
    return sum(map(is_scheduled, mod.functions.values()))


def _check_applied(scheduled: int, expected: int) -> None:
    if scheduled < expected:
        raise FractuneError(f"only {scheduled} of {expected} schedules found their operator in the compiled model")


def _packer(target: Any) -> Callable[..., str]:
    """The function with which TVM packs a library's imports: it turns source among them into machine code."""
    compile_source = source_compiler(target, compiler_for(target))

    def pack(library: Any, _is_system_lib: bool, prefix: str, folder: str) -> str:  # noqa: FBT001  TVM's order
        path = Path(folder) / f"{prefix}devc.o"
        path.write_bytes(packed_imports(library, compile_source))
        return str(path)

    return pack


def _export(library: Any, pack: Callable[..., str]) -> dict[str, bytes]:
    objects: dict[str, bytes] = {}

    def collect(_output: str, files: list[str], **_options: Any) -> None:
        objects.update({Path(file).name: Path(file).read_bytes() for file in files})

    collect.output_format = "o"  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        library.mod.export_library(str(Path(folder) / "model.o"), fcompile=collect, fpack_imports=pack)
    return objects
