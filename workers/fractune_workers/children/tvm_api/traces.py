"""Workloads, and the traces of schedules for them, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.schedule import Trace

from fractune_core.operators import DIRECT, joined_workloads, parted_workloads
from fractune_core.records import UNTUNED
from fractune_core.tir.canonical import Graph, canonical_graph, read_graph
from fractune_core.tir.foreign_code import refuse_foreign_graph, refuse_foreign_steps
from fractune_workers.children.tvm_api.dot_intrinsics import register_named
from fractune_workers.children.tvm_api.quantizing import operands, quantizing_roles, rounded_to, whole_numbers
from fractune_workers.children.tvm_api.tir import parts_of, register_reducers

_TYPE_PARTS = 3
"""of the description of an argument"""


class Workload:
    """One TIR module of an operator, in its canonical form: with names by position, and of one text."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @classmethod
    def of(cls, mod: tvm.IRModule) -> Workload:
        """The workload of a module, whatever its parts are called."""
        return cls(canonical_graph(mod))

    @cached_property
    def mod(self) -> tvm.IRModule:
        register_reducers()
        return read_graph(self.graph)


def read_workload(text: str) -> Workload:
    """The workload in the log's text of an operator: of several implementations, the direct one."""
    return read_workloads(text)[DIRECT]


def read_workloads(text: str) -> dict[str, Workload]:
    """The workload of each implementation by its name, the direct one first. Raises BadModel for foreign code."""
    graphs = parted_workloads(text)
    for graph in graphs.values():
        refuse_foreign_graph(graph)
    return {name: Workload(graph) for name, graph in graphs.items()}


def write_workloads(workloads: Mapping[str, Workload]) -> str:
    """The text that `read_workloads` reads, always the same for the same operator."""
    return joined_workloads({name: workload.graph for name, workload in workloads.items()})


def read_trace(text: str, workload: Workload) -> Any:
    """The schedule of the trace, applied to the workload; the bare schedule for UNTUNED. Raises BadModel for foreign
    code.
    """
    sch = Schedule(workload.mod, debug_mask="none")
    if text != UNTUNED:
        trace = json.loads(text)
        refuse_foreign_steps(trace)
        register_named(text)
        Trace.apply_json_to_schedule(trace, sch)
    return sch


def write_trace(trace: Any) -> str:
    """A trace as JSON text, always the same text for the same trace; blocks by position if its schedule has them so."""
    return json.dumps(trace.as_json(), separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """TVM's containers and its boxed numbers (IntImm, FloatImm) as Python's."""
    return list(value) if hasattr(value, "__iter__") else value.value


def args_of(workload: Workload, *, tf32: bool = False) -> list[Any]:
    """The arguments of the workload's entry function: `["TENSOR", dtype, shape]` each, and behind that what is known:

    - bounds: whole numbers in float32 have their smallest and largest one, as `[0, 255]`; computed weights a third, 1.
      So have integers that are indices
    - roles: those of arguments that quantize the output, or are multiplied in half precision, as `["scale"]`
    - of the last argument: the type in half precision that the operator rounds to (`half_precision.rounded_to`)

    Where `tf32` is allowed, that holds for products in float32 too.

    Empty lists at the end are left out.
    """
    bounds = whole_numbers(workload.mod) or _index_ranges(workload.mod)
    roles = operands(workload.mod, tf32=tf32) | quantizing_roles(workload.mod)
    described = [
        [kind, str(dtype), [int(dim) for dim in shape], bounds.get(at, []), roles.get(at, []), []]
        for at, (kind, dtype, shape) in enumerate(
            info.as_json() for info in ArgInfo.from_entry_func(workload.mod, remove_preproc=True)
        )
    ]
    described[-1][-1] = rounded_to(workload.mod, tf32=tf32)
    for each in described:
        while len(each) > _TYPE_PARTS and not each[-1]:
            each.pop()
    return described


def _index_ranges(mod: tvm.IRModule) -> dict[int, list[int]]:
    """By the place of an argument with indices: the first and the last one of the axis that they are of, the shortest
    if these are several. A gather from two rows stays in a cache, and one from all of them does not.
    """
    stores, loads = (parts_of(mod["main"].body, kind) for kind in (tirx.BufferStore, TensorLoad))
    accesses = [(each.source, each.indices) for each in loads] + [(each.buffer, each.indices) for each in stores]
    axes = [
        (source, int(dim))
        for tensor, indices in accesses
        for dim, index in zip(tensor.shape, indices, strict=True)
        # A remainder is the inner part of a flat place. The index decides the outer part.
        if isinstance(dim, tirx.IntImm) and not isinstance(index, tirx.FloorMod)
        for source in _loaded(index)
    ]
    made_of: dict[Any, set[Any]] = {}
    for store in stores:
        if "int" in str(store.buffer.dtype):
            made_of.setdefault(store.buffer, set()).update(_loaded(store.value))
    found: dict[int, list[int]] = {}
    for at, param in enumerate(mod["main"].params):
        reached, new = set[Any](), {param}
        while new:
            reached |= new
            new = {buffer for buffer, sources in made_of.items() if sources & new} - reached
        extents = [extent for source, extent in axes if source in reached]
        if extents and "int" in str(param.dtype):
            found[at] = [0, min(extents) - 1]
    return found


def _loaded(value: Any) -> set[Any]:
    """The buffers that an expression reads."""
    return {load.source for load in parts_of(value, TensorLoad)}
