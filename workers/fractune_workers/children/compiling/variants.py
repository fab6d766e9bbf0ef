"""Whole models: compile the variants of a bundle."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu_pipeline
from tvm.relax.backend.cuda import pipeline as cuda_pipeline
from tvm.s_tir import meta_schedule as ms

from fractune_core.errors import FractuneError
from fractune_workers.children.building.cuda import packed_imports, scheduled_by_default, source_compiler
from fractune_workers.children.compiling.concat_in_place import parts_in_place
from fractune_workers.children.compiling.outputs_in_place import with_entry_for_outputs
from fractune_workers.children.importing.passes import is_scheduled
from fractune_workers.children.tvm_api.cuda_target import compiler_for
from fractune_workers.children.tvm_api.traces import Workload, read_trace


def compile_variant(mod: Any, target: Any, schedules: dict[Workload, str]) -> dict[str, bytes]:
    """Machine code and VM bytecode of a prepared module, with `schedules` (workload -> trace) applied.

    Returns object files by name. Raises FractuneError when a schedule finds no operator: then the passes of
    ingest and compile have come apart; and for a GPU when this machine has no CUDA compiler.
    """
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
            mod = scheduled_by_default(mod, target)
        mod = parts_in_place(tvm.transform.Sequential(pipeline.dataflow_lower_passes(target))(mod))
        if not for_gpu:
            mod = with_entry_for_outputs(mod)
        rest = tvm.transform.Sequential(pipeline.finalize_passes(target))
        library = tvm.relax.build(mod, target=target, relax_pipeline=rest)
    return _export(library, _packer(target) if for_gpu else None)


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


def _export(library: Any, pack: Callable[..., str] | None) -> dict[str, bytes]:
    objects: dict[str, bytes] = {}

    def collect(_output: str, files: list[str], **_options: Any) -> None:
        objects.update({Path(file).name: Path(file).read_bytes() for file in files})

    collect.output_format = "o"  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        library.mod.export_library(str(Path(folder) / "model.o"), fcompile=collect, fpack_imports=pack)
    return objects
