"""The code of a measured schedule: its decisions, its TIR and its assembly.

The log has an operator's program and the trace of a schedule. TVM applies one to the other again, in the sandbox in
which builders compile: both come from the log, which anybody may have imported.
"""

import importlib.util
import json
from dataclasses import dataclass
from typing import Any

from fractune.server.rpc import RpcClient
from fractune_core.errors import FractuneError, NotFound, one_line
from fractune_core.operators import trace_of
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import UNTUNED, Status, TuningRecord

_NAMES = {"SamplePerfectTile": "tile", "SamplePartitionedTile": "tile", "SampleComputeLocation": "place"}
"""of decisions by the steps that draw them; any other is a choice"""
_MOST = 400
"""characters of decisions"""
_LIMIT_CPU_S = 60
"""a reader waits longer than a search"""


@dataclass(frozen=True)
class ScheduleCode:
    """The program that was measured."""

    decisions: str
    """one line"""
    tir: str
    """the scheduled TIR, as TVMScript"""
    assembly: str
    """of the schedule's target; empty for a GPU"""


def decisions_text(candidate: str) -> str:
    """What a candidate decided, in the order of its steps: `tile 4x1x8, choice 2, place 3`. One line."""
    if candidate == UNTUNED:
        return "untuned"
    trace = trace_of(candidate)
    try:
        steps, decisions = json.loads(trace)
        found = ", ".join(f"{_NAMES.get(steps[at][0], 'choice')} {_value(value)}" for at, value in decisions)
    except (ValueError, TypeError, LookupError, RecursionError):  # Triton's decisions, or an import of anything
        found = "" if trace == "[]" else trace
    return one_line(found)[:_MOST] or "no decisions"


def _value(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def can_rebuild() -> bool:
    """Whether TVM and the builder are installed here."""
    return all(importlib.util.find_spec(name) for name in ("tvm", "fractune_workers"))


def code_of(rpc: RpcClient, record: TuningRecord) -> ScheduleCode:
    """Raises FractuneError without TVM, or if the schedule cannot be built; NotFound if the server lost the program."""
    if not can_rebuild():
        raise FractuneError("the code of a schedule is made by TVM; install 'fractune[local]'")
    if record.status is not Status.OK:
        raise FractuneError(f"record {record.record_id} is of a failure: {one_line(record.cause)}; choose another")
    from fractune_workers.builder_process import BuilderProcess

    program, builder = _program(rpc, record), BuilderProcess()
    try:
        builder.learn(record.workload_hash, record.target, lambda: program)
        built = builder.build(record.workload_hash, record.target, record.trace, _LIMIT_CPU_S, as_text=True)
    finally:
        builder.stop()
    if built.status is not Status.OK:
        raise FractuneError(f"record {record.record_id} cannot be built here: {built.cause}")
    try:
        texts = json.loads(built.code)
        return ScheduleCode(decisions_text(record.trace), texts["tir"], texts["assembly"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise FractuneError(f"record {record.record_id}: the builder gave no readable code; try again") from error


def _program(rpc: RpcClient, record: TuningRecord) -> str:
    wanted = pb.RecordFilter(operator=record.workload_hash, namespace=record.namespace)
    for part in rpc.export_records(wanted, with_workloads=True):
        if part.WhichOneof("part") == "workload":
            return part.workload.json
    raise NotFound(f"the program of {one_line(record.operator)} is not in this log")
