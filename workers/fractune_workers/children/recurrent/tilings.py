"""How the kernel of a recurrence divides its work: all its choices, the first one computed, and its neighbours.

Also the arguments that they are measured by, and the passes that give the kernels of a model their tilings.

Each tiling is an implementation of the operator, with nothing left to decide. A candidate is written
`packed1x32units:[]`: the tiling's name, and an empty trace.
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, log2, sqrt
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from fractune_core.errors import BadModel
from fractune_core.operators import INT8
from fractune_workers.children.recurrent.kernel import RECURRENCE, TILING, recurrence_kernel
from fractune_workers.children.recurrent.packing import BYTES, DIRECTIONS, UNITS, Tiling, pack, unpack
from fractune_workers.children.recurrent.recurrence import LARGEST_WEIGHT, Recurrence
from fractune_workers.children.rewriting.expressions import element_bytes, numbers_of, operator_of, rewritten
from fractune_workers.children.tvm_api.dot_intrinsics import dot_product
from fractune_workers.children.tvm_api.target import VectorUnit, vector_unit

MOST = 16
"""of an operator"""
_ENOUGH_SUMS = 8
"""Registers with sums that hide the latency of a multiply-add: 4 cycles, 2 of them at once"""
_MOST_ROWS = 6
"""that are computed together at first: more read the weights less often, which hardly counts any more"""
_FLOAT32_BYTES = 4
_PARALLEL_UNITS_BYTES = 2**21
"""Recurrent weights of a single direction from which on several cores share a step, with a barrier behind it. Fewer are
read faster by one core, which begins each step with the weights in its cache."""
_WEIGHTS = "weights"
"""beginning of the names of the kernel's arguments that are weights"""


def runs(tiling: Tiling, recurrence: Recurrence, target: Target) -> bool:
    """Whether the target has the instructions."""
    return tiling.dots in (0, _dots(recurrence, target))


def tiling_for(recurrence: Recurrence, target: Target) -> Tiling:
    """Rows that share the weights which a step reads, as many as the registers hold, in tiles of about one size. And
    enough sums to hide the latency of a multiply-add. Whole numbers are summed by the target's instructions for them,
    where it has any.
    """
    unit = vector_unit(target)
    most, least = max(map(len, recurrence.phases)), min(map(len, recurrence.phases))
    width = element_bytes(recurrence.whole_weights or recurrence.dtype)
    lanes = _lanes(recurrence, unit)
    rows = next(each for each in range(_MOST_ROWS, 0, -1) if each == 1 or _registers(most, each) <= unit.registers)
    rows = ceil(recurrence.batch / ceil(recurrence.batch / rows))
    vectors = 1
    while least * vectors * rows < _ENOUGH_SUMS and _registers(2 * most * vectors, rows) <= unit.registers:
        vectors *= 2
    shared = DIRECTIONS if recurrence.directions > 1 else ""
    if not shared and recurrence.gates * recurrence.units**2 * width >= _PARALLEL_UNITS_BYTES:
        shared = UNITS
    dots = _dots(recurrence, target)
    units = vectors * lanes if dots else min(vectors * lanes, recurrence.units)
    return Tiling(units, rows, shared, packed=True, dots=dots)


def tilings(recurrence: Recurrence, target: Target) -> dict[str, Tiling]:
    """The tilings to choose from by name, at most MOST: `tiling_for`, then its neighbours, the nearest first."""
    unit = vector_unit(target)
    first, lanes = tiling_for(recurrence, target), _lanes(recurrence, unit)
    gates = max(map(len, recurrence.phases))

    def fits(tiling: Tiling) -> bool:
        vectors = -(-tiling.units // lanes)
        blocks = recurrence.units // tiling.units
        return (
            0 < tiling.rows <= recurrence.batch
            and blocks >= (2 if tiling.parallel == UNITS else 1)
            and _registers(gates * vectors, tiling.rows) <= unit.registers
        )

    def distance(tiling: Tiling) -> float:
        changed = (tiling.units / first.units, tiling.rows / first.rows)
        return sum(abs(log2(each)) for each in changed) + (tiling.parallel != first.parallel)

    made = {
        replace(first, units=units, rows=rows, parallel=parallel)
        for units in (first.units, lanes, 2 * lanes, 4 * lanes, 8 * lanes)
        for rows in (1, first.rows // 2, first.rows, 2 * first.rows)
        for parallel in ("", UNITS, *([DIRECTIONS] if recurrence.directions > 1 else []))
    }
    chosen = sorted((each for each in made - {first} if fits(each)), key=lambda each: (distance(each), each.name))
    return {each.name: each for each in [first, *chosen][:MOST]}


def _registers(vectors: int, rows: int) -> int:
    """Registers of a tile with so many vectors of sums for each row: the sums, the weights that several rows share, and
    a number of the state. LLVM keeps sums that do not fit in memory, which takes almost twice the time.
    """
    return vectors * rows + (vectors if rows > 1 else 0) + 1


def _lanes(recurrence: Recurrence, unit: VectorUnit) -> int:
    return max(1, unit.lanes * _FLOAT32_BYTES // element_bytes(recurrence.dtype))


def _dots(recurrence: Recurrence, target: Target) -> int:
    dot = dot_product(INT8, target, vector_unit(target).lanes) if recurrence.whole_weights == BYTES else None
    return dot.lanes if dot else 0


def arguments_of(recurrence: Recurrence, target: Target) -> list[Any]:
    """Descriptions of the plain kernel's arguments, as `traces.args_of` has them, in the ranges of a trained network.
    The role of weights is the name of the target's computed tiling.

    Lengths are at most the steps, and a mask is 0 or 1. Products of state and weights vary as much as the state does:
    with weights of one sign, every activation would be at its limit, and hide a wrong kernel.
    """
    most = sqrt(3 / recurrence.units)
    largest = LARGEST_WEIGHT.get(recurrence.whole_weights, 0)
    bounds: dict[str, list[float]] = {
        "projected": [-2.0, 2.0],
        _WEIGHTS: [1 - largest, largest - 1] if largest else [-most, most],
        "first": [-1.0, 1.0],
        "first_cells": [-1.0, 1.0],
        "scales": [most / 2 / (largest or 1), most * 3 / 2 / (largest or 1)],
        "peepholes": [-0.5, 0.5],
        "bias": [-0.5, 0.5],
        "lengths": [1, recurrence.steps],
        "mask": [0, 1],
    }
    default = tiling_for(recurrence, target).name
    described = []
    for each in recurrence_kernel(recurrence, Tiling()).params:
        name = str(each.name).rstrip("01")
        roles = [default] if name == _WEIGHTS else []
        described.append(["TENSOR", str(each.dtype), [int(dim) for dim in each.shape], bounds.get(name, []), roles])
    return described


_NORMALIZE = "tvm.s_tir.meta_schedule.normalize_mod"


def with_vectors(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The module with the computed tiling of the target for each recurrent kernel."""
    return with_tilings(mod, lambda recurrence: tiling_for(recurrence, target))


def with_tilings(mod: tvm.IRModule, chosen: Callable[[Recurrence], Tiling | None]) -> tvm.IRModule:
    """The module with the chosen tiling for each recurrent kernel; None = as it is. Weights that are not constant stay
    where they are.
    """
    if not _recurrent(mod):
        return mod
    # Without the kernels that no call is left of.
    tiled: tvm.IRModule = relax.transform.DeadCodeElimination()(rewritten(mod, _Tiler(mod.clone(), chosen)))
    return tiled


def refuse_recurrences(mod: tvm.IRModule) -> None:
    """Raises BadModel for a module with recurrent kernels: their loops are those of a CPU."""
    if _recurrent(mod):
        raise BadModel("has an LSTM, GRU or RNN, which has no kernel for a GPU; tune it for shares of a CPU")


def recurrence_in(mod: tvm.IRModule) -> Recurrence | None:
    """What the module of one operator computes; None for another operator."""
    known = _known(mod["main"])
    return known and known[0]


def kernel_module(recurrence: Recurrence, tiling: Tiling) -> tvm.IRModule:
    """The kernel as the module of one operator."""
    normalized: tvm.IRModule = tvm.get_global_func(_NORMALIZE)(recurrence_kernel(recurrence, tiling))
    return normalized


def _recurrent(mod: tvm.IRModule) -> list[Any]:
    return [function for function in mod.functions.values() if function.attrs and RECURRENCE in function.attrs]


@mutator
class _Tiler(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, chosen: Callable[[Recurrence], Tiling | None]) -> None:
        super().__init__(mod)
        self._mod, self._chosen = mod, chosen

    def visit_call_(self, call: Any) -> Any:
        visited = super().visit_call_(call)
        if operator_of(visited) != "call_tir" or len(visited.args) != 2:
            return visited
        known = _known(self._mod[visited.args[0]])
        chosen = known and self._chosen(known[0])
        return visited if not known or chosen in (None, known[1]) else self._tiled(visited, *known, chosen)

    def _tiled(self, call: Any, recurrence: Recurrence, old: Tiling, new: Tiling) -> Any:
        arguments = list(call.args[1].fields)
        weights = [numbers_of(self.builder_, each) for each in arguments[1 : 1 + len(recurrence.phases)]]
        if any(each is None for each in weights):
            if old.packed:
                return call
            new = replace(new, packed=False, dots=0)
        for at, each in enumerate(weights, 1):
            if each is not None:
                arguments[at] = relax.const(pack(unpack(each, recurrence.units, old), new), str(each.dtype))
        kernel = self.builder_.add_func(recurrence_kernel(recurrence, new), recurrence.cell.lower())
        return relax.call_tir(kernel, relax.Tuple(arguments), list(call.ty.fields))


def _known(function: Any) -> tuple[Recurrence, Tiling] | None:
    """What the kernel computes, and how; None for another function. A module may come from a file, with attributes that
    do not belong to its function.
    """
    texts = [function.attrs.get(name) if function.attrs else None for name in (RECURRENCE, TILING)]
    if None in texts:
        return None
    try:
        recurrence, tiling = Recurrence.from_json(str(texts[0])), Tiling.named(str(texts[1]))
        own = tiling and recurrence_kernel(recurrence, tiling)
    except Exception:  # noqa: BLE001  anything may stand there; the function stays as it is
        return None
    is_own = tiling and tvm_ffi.structural_equal(function.without_attr("global_symbol"), own)
    return (recurrence, tiling) if tiling and is_own else None
