"""Loads TVM's tensor intrinsics of the target processor alone.

TVM imports `tvm.s_tir.tensor_intrin` for every build and search. Its `__init__` parses hundreds of CUDA intrinsics,
which takes 5 to 40 seconds of a child's start. An empty package of the same name, registered before, prevents this. The
modules of one CPU are loaded where traces are made or applied, and CUDA's for operators that may use tensor cores.
"""

import importlib
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import tvm.s_tir

from fractune_workers.children.tvm_api.dot_intrinsics import stacks_without_source
from fractune_workers.children.tvm_api.target import architecture
from fractune_workers.children.tvm_api.traces import args_of

_PACKAGE = "tvm.s_tir.tensor_intrin"
_X86 = "x86_64"
_MODULES = {_X86: ("dot_product_common", "x86"), "aarch64": ("dot_product_common", "arm_cpu")}
_TENSOR_CORE_TYPES = frozenset({"float16", "int8"})
"""types that TVM's rules put on tensor cores; `float32` stays `float32`, on the other cores"""


def keep_out_gpu_intrinsics() -> None:
    """Let TVM find an empty package in the place of all its intrinsics."""
    if _PACKAGE not in sys.modules:
        package = types.ModuleType(_PACKAGE, "Tensor intrinsics that were loaded on request.")
        package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
        sys.modules[_PACKAGE] = package


def load_intrinsics(target: tvm.target.Target) -> None:
    """Register TVM's intrinsics of the target's CPU, none for a GPU."""
    keep_out_gpu_intrinsics()
    if target.kind.name == "cuda":
        return
    _round_in_vectors()
    for name in _MODULES.get(architecture(target), ()):
        _load(name)


@cache
def _round_in_vectors() -> None:
    """TVM does not know that a vector can be rounded, and would round its numbers one by one."""
    tvm.ir.register_op_attr("tirx.nearbyint", "TVectorizable", value=True)


def prepare_tensor_cores(workload: Any, target: tvm.target.Target) -> bool:
    """Whether schedules of the workload for `target` may use tensor cores; if so, their intrinsics are registered.

    The registration takes many seconds, once in a process. Schedules of operators of other types never need it.
    """
    if target.kind.name != "cuda" or not _TENSOR_CORE_TYPES & {dtype for _, dtype, *_ in args_of(workload)}:
        return False
    keep_out_gpu_intrinsics()
    _load("cuda")
    return True


def _load(name: str) -> None:
    with stacks_without_source():
        importlib.import_module(f"{_PACKAGE}.{name}")
