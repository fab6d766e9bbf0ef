"""The builder's child: trace -> machine code. It stays warm, and every build runs in a fork of it.

A fork costs milliseconds where a new process would import TVM for seconds. What it leaks goes with it (TVM's compiler
does leak), and one that crashes or compiles without end takes nothing along. Its limit is on CPU time: a build that is
stopped for a measurement, or shares its core, is not blamed for that.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import tvm

from tuner_core.records import Status
from workers.children.artifacts import args_of, build_object, read_trace, read_workload
from workers.children.intrinsics import load_intrinsics
from workers.children.lifeline import die_with_parent
from workers.children.messages import first_line

_LIMIT_CPU_S = 10


class BuilderChild:
    """Builds candidates of the workloads it was told."""

    def __init__(self) -> None:
        self._workloads: dict[str, Any] = {}

    def learn_workload(self, workload_hash: str, workload: str) -> list[Any]:
        """Remember a workload (MetaSchedule's JSON text); return its argument descriptions."""
        self._workloads[workload_hash] = read_workload(workload)
        return args_of(self._workloads[workload_hash])

    def build(self, workload_hash: str, target: str, trace: str, limit_cpu_s: int = _LIMIT_CPU_S) -> dict[str, Any]:
        """Build one candidate: `status`, its one-line `cause`, `object` (base64) and `build_secs` (CPU seconds)."""
        parsed = tvm.target.Target(json.loads(target))
        load_intrinsics(parsed)  # here, so that no fork has to
        reader, writer = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _leave_with(lambda: self._attempt(workload_hash, parsed, trace, limit_cpu_s), reader, writer, parent)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read()
        _, status, usage = os.wait4(pid, 0)
        spent_s = usage.ru_utime + usage.ru_stime
        if os.WIFSIGNALED(status) or not answer:
            return _ended(os.WTERMSIG(status), spent_s, limit_cpu_s)
        found: dict[str, Any] = json.loads(answer)
        return found

    def _attempt(self, workload_hash: str, target: tvm.target.Target, trace: str, limit_cpu_s: int) -> dict[str, Any]:
        answer: dict[str, Any] = {"status": Status.OK.value, "cause": "", "object": "", "build_secs": 0.0}
        try:
            # What the parent has used counts in no fork: CPU time begins at 0 in each.
            resource.setrlimit(resource.RLIMIT_CPU, (limit_cpu_s, limit_cpu_s + 1))
            sch = read_trace(trace, self._workloads[workload_hash])
            code = build_object(sch.mod, target)
        except Exception as error:  # noqa: BLE001  whatever TVM raises is the candidate's fault
            return answer | {
                "status": Status.BUILD_FAILED.value,
                "cause": f"{type(error).__name__}: {first_line(error)}",
            }
        return answer | {"object": base64.b64encode(code).decode(), "build_secs": time.process_time()}


def _leave_with(attempt: Callable[[], dict[str, Any]], reader: int, writer: int, parent: int) -> NoReturn:
    """In a fork: write the answer to the pipe and end. Whatever happens, it must not go on as a second server."""
    try:
        die_with_parent(parent)
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(attempt()).encode())
        os._exit(0)
    except BaseException:  # noqa: BLE001  its parent sees a pipe without an answer
        traceback.print_exc()
    finally:
        os._exit(1)


def _ended(number: int, spent_s: float, limit_cpu_s: int) -> dict[str, Any]:
    timed_out = number == signal.SIGXCPU or (number == signal.SIGKILL and spent_s >= limit_cpu_s)
    if timed_out:
        status, cause = Status.BUILD_TIMEOUT, f"not built within {limit_cpu_s} s of CPU time"
    else:
        how = signal.Signals(number).name if number else "an early end"
        status, cause = Status.CRASHED, f"while it was built: the compiler was ended by {how}"
    return {"status": status.value, "cause": cause, "object": "", "build_secs": spent_s}


def _warm_up() -> None:
    """Build something small, so that what LLVM sets up once is there before the first fork."""
    from tvm import te

    from workers.children.target import default_target

    empty = te.placeholder((8,), name="empty")
    fill = te.compute((8,), lambda i: empty[i] + 1.0, name="fill")
    build_object(tvm.IRModule({"main": te.create_prim_func([empty, fill])}), default_target(1))


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    _warm_up()
    child = BuilderChild()
    return {"learn_workload": child.learn_workload, "build": child.build}
