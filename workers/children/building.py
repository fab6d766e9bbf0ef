"""The builder's child: trace -> machine code, in a process that stays warm."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import tvm

from workers.children.artifacts import args_of, build_object, read_trace, read_workload
from workers.children.intrinsics import load_cpu_intrinsics


class BuilderChild:
    """Builds candidates of the workloads it was told."""

    def __init__(self) -> None:
        self._workloads: dict[str, Any] = {}

    def learn_workload(self, workload_hash: str, workload: str) -> list[Any]:
        """Remember a workload (MetaSchedule's JSON text); return its argument descriptions."""
        self._workloads[workload_hash] = read_workload(workload)
        return args_of(self._workloads[workload_hash])

    def build(self, workload_hash: str, target: str, trace: str) -> dict[str, Any]:
        """The object file of one candidate (base64) and the CPU seconds it took."""
        start = time.process_time()
        sch = read_trace(trace, self._workloads[workload_hash])
        code = build_object(sch.mod, tvm.target.Target(json.loads(target)))
        return {"object": base64.b64encode(code).decode(), "build_secs": time.process_time() - start}


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    load_cpu_intrinsics()
    child = BuilderChild()
    return {"learn_workload": child.learn_workload, "build": child.build}
