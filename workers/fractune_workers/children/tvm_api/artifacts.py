"""Artifacts: machine code of one candidate in memory, an object file or an archive of them, loaded without a linker."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import tvm_ffi_orcjit
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.builder.local_builder import default_build
from tvm.s_tir.schedule import Trace

from fractune_core.records import UNTUNED
from fractune_workers.children.tvm_api.archives import is_archive, unpack
from fractune_workers.children.tvm_api.intrinsics import keep_out_gpu_intrinsics


def read_workload(text: str) -> Any:
    """MetaSchedule's Workload from its JSON text."""
    return ms.database.Workload.from_json(json.loads(text))


def read_trace(text: str, workload: Any) -> Any:
    """The schedule that the trace gives when it is applied to the workload; the bare one for UNTUNED."""
    sch = Schedule(workload.mod, debug_mask="none")
    if text != UNTUNED:
        Trace.apply_json_to_schedule(json.loads(text), sch)
    return sch


def write_trace(trace: Any) -> str:
    """A trace as JSON text, always the same text for the same trace."""
    return json.dumps(trace.as_json(), separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """TVM's containers and its boxed numbers (IntImm, FloatImm) as Python's."""
    return list(value) if hasattr(value, "__iter__") else value.value


def args_of(workload: Any) -> list[Any]:
    """The arguments of the workload's entry function: `["TENSOR", dtype, shape]` each."""
    return [
        [kind, str(dtype), [int(dim) for dim in shape]]
        for kind, dtype, shape in (
            info.as_json() for info in ArgInfo.from_entry_func(workload.mod, remove_preproc=True)
        )
    ]


def build_object(mod: Any, target: Any) -> bytes:
    """Compile a TIR module to one object file. Raises whatever TVM raises."""
    keep_out_gpu_intrinsics()
    library = default_build(mod, target, None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "candidate.o"
        library.write_to_file(str(path), "o")
        return path.read_bytes()


def load_objects(objects: list[bytes]) -> Any:
    """The runtime module in object files, or archives of them. Two loads never share code, unlike two of one path."""
    members = [part for each in objects for part in (unpack(each).values() if is_archive(each) else [each])]
    return tvm_ffi_orcjit.default_session().load_module(members)
