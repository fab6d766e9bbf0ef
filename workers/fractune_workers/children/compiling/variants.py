"""Whole models: compile the variants of a bundle, and time them at the share of this process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu_pipeline
from tvm.relax.backend.cuda import pipeline as cuda_pipeline
from tvm.s_tir import meta_schedule as ms

from fractune_core.bundles import UNTUNED_VARIANT, WEIGHTS, Bundle
from fractune_core.errors import FractuneError
from fractune_workers.children.building.cuda import packed_imports, scheduled_by_default, source_compiler
from fractune_workers.children.compiling.weights import unpack_weights
from fractune_workers.children.importing.passes import is_scheduled
from fractune_workers.children.measuring.timing import difference, random_args
from fractune_workers.children.tvm_api.artifacts import load_objects, read_trace
from fractune_workers.children.tvm_api.cuda_target import compiler_for
from fractune_workers.children.tvm_api.processor import Processor

_SLOW_S, _FEWEST_TURNS = 0.1, 3
_MIN_TURN_S = 0.02
"""One turn of a variant calls the model until this long has passed"""


def compile_variant(mod: Any, target: Any, schedules: dict[Any, str]) -> dict[str, bytes]:
    """Machine code and VM bytecode of a prepared module, with `schedules` (workload -> trace) applied.

    Returns object files by name. Raises FractuneError when a schedule finds no operator: then the passes of
    ingest and compile have come apart; and for a GPU when this machine has no CUDA compiler.
    """
    for_gpu = target.kind.name == "cuda"
    pipeline = cuda_pipeline if for_gpu else cpu_pipeline
    database = ms.database.MemoryDatabase()
    for workload, trace in schedules.items():
        entry = database.commit_workload(workload.mod)
        record = ms.database.TuningRecord(read_trace(trace, entry).trace, entry, [1.0], target, None)
        database.commit_tuning_record(record)
    scheduled_before = _scheduled(mod)
    with target, database, tvm.transform.PassContext(opt_level=3):
        mod = relax.transform.MetaScheduleApplyDatabase()(mod)
        _check_applied(_scheduled(mod) - scheduled_before, len(schedules))
        if for_gpu:
            mod = scheduled_by_default(mod, target)
        passes = pipeline.dataflow_lower_passes(target) + pipeline.finalize_passes(target)
        library = tvm.relax.build(mod, target=target, relax_pipeline=tvm.transform.Sequential(passes))
    return _export(library, _packer(target) if for_gpu else None)


def _scheduled(mod: Any) -> int:
    """How many functions of the module have their schedule."""
    return sum(map(is_scheduled, mod.functions.values()))


def _check_applied(scheduled: int, expected: int) -> None:
    if scheduled < expected:
        raise FractuneError(f"only {scheduled} of {expected} schedules found their operator in the compiled model")


def _packer(target: Any) -> Callable[..., str]:
    """What TVM calls to have a library's imports packed: source among them becomes machine code."""
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


def time_variants(path: Path, repeats: int, processor: Processor) -> dict[str, Any]:
    """Time every variant of a bundle in turn on the same random inputs.

    Returns `run_secs` (seconds of one inference, `repeats` of them, of a slow variant three) and `max_error` (largest
    difference to the untuned output, over that output's largest value) by variant.
    """
    bundle = Bundle(path)
    inputs = [["TENSOR", spec["dtype"], spec["shape"]] for spec in bundle.manifest["inputs"]]
    args = [*random_args(inputs, 0, processor), *weights_of(bundle, processor)]
    machines = {entry["name"]: load_variant(bundle, entry["name"], processor) for entry in bundle.variants}
    outputs, turns = {}, {}
    for name, machine in machines.items():
        start = time.perf_counter()
        outputs[name] = outputs_of(machine["main"](*args), processor)
        turns[name] = min(repeats, _FEWEST_TURNS) if time.perf_counter() - start > _SLOW_S else repeats
    reference = outputs[UNTUNED_VARIANT]
    run_secs: dict[str, list[float]] = {name: [] for name in machines}
    for turn in range(repeats):
        for name, machine in machines.items():
            if turn < turns[name]:
                run_secs[name].append(_one_turn(machine, args, processor))
    errors = {name: max(map(difference, out, reference)) for name, out in outputs.items()}
    return {"run_secs": run_secs, "max_error": errors}


def load_variant(bundle: Bundle, name: str, processor: Processor) -> Any:
    """Relax's virtual machine over the variant's object files."""
    return relax.VirtualMachine(load_objects(bundle.objects(name)), processor.device)


def weights_of(bundle: Bundle, processor: Processor) -> list[Any]:
    """The bundle's weights in the order in which `main` takes them after the inputs."""
    return unpack_weights(bundle.read(WEIGHTS), bundle.manifest["weights"], processor.tensor)


def outputs_of(result: Any, processor: Processor) -> list[Any]:
    """The model's outputs as arrays, whether it gives one tensor or a (nested) tuple of them."""
    if hasattr(result, "numpy"):
        return [processor.read(result)]
    return [array for part in result for array in outputs_of(part, processor)]


def _one_turn(machine: Any, args: list[Any], processor: Processor) -> float:
    """Seconds of one inference, averaged over as many as fill the shortest turn. Each is waited for, as by a client."""
    main = machine["main"]
    calls, start = 0, time.perf_counter()
    while True:
        main(*args)
        processor.sync()
        calls += 1
        spent = time.perf_counter() - start
        if spent >= _MIN_TURN_S:
            return spent / calls
