"""Tensor cores: which operators may use them, and in which design space those are searched."""

from __future__ import annotations

from typing import Any

import tvm

from fractune_workers.children.tvm_api.intrinsics import load_tensor_cores
from fractune_workers.children.tvm_api.traces import args_of

_TYPES = frozenset({"float16", "int8"})
"""what TVM's rules put on tensor cores; `float32` stays `float32`, on the other cores"""


def prepare_tensor_cores(workload: Any, target: tvm.target.Target) -> bool:
    """Whether schedules of the workload for `target` may use tensor cores; their intrinsics are registered then.

    That takes many seconds, once in a process, and schedules of operators of other types never need it.
    """
    if target.kind.name != "cuda" or not _TYPES & {dtype for _, dtype, _ in args_of(workload)}:
        return False
    load_tensor_cores()
    return True
