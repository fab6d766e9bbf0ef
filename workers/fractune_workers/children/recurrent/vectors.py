"""The pass that gives recurrent kernels the vectors and the packed weights of a target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_core.errors import BadModel
from fractune_workers.children.recurrent.kernel import RECURRENCE, Tiling, recurrence_kernel, tiling_for
from fractune_workers.children.recurrent.recurrence import Recurrence, pack
from fractune_workers.children.rewriting.expressions import numbers_of, operator_of, rewritten
from fractune_workers.children.tvm_api.target import VectorUnit


def with_vectors(mod: tvm.IRModule, unit: VectorUnit) -> tvm.IRModule:
    """The module with each recurrent kernel in blocks for the vector unit."""
    return rewritten(mod, _Vectorizer(mod.clone(), unit)) if _recurrent(mod) else mod


def refuse_recurrences(mod: tvm.IRModule) -> None:
    """Raises BadModel for a module with recurrent kernels: their loops are those of a CPU."""
    if _recurrent(mod):
        raise BadModel("has an LSTM, GRU or RNN, which has no kernel for a GPU; tune it for shares of a CPU")


def _recurrent(mod: tvm.IRModule) -> list[Any]:
    return [function for function in mod.functions.values() if function.attrs and RECURRENCE in function.attrs]


@mutator
class _Vectorizer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, unit: VectorUnit) -> None:
        super().__init__(mod)
        self._mod, self._unit = mod, unit

    def visit_call_(self, call: Any) -> Any:
        visited = super().visit_call_(call)
        if operator_of(visited) != "call_tir" or len(visited.args) != 2:
            return visited
        recurrence = _recurrence_of(self._mod[visited.args[0]])
        return visited if recurrence is None else self._planned(visited, recurrence)

    def _planned(self, call: Any, recurrence: Recurrence) -> Any:
        tiling = tiling_for(recurrence, self._unit)
        arguments = list(call.args[1].fields)
        weights = [numbers_of(self.builder_, each) for each in arguments[1 : 1 + len(recurrence.phases)]]
        tiling = replace(tiling, packed=all(each is not None for each in weights))
        for at, (gates, each) in enumerate(zip(recurrence.phases, weights, strict=True)):
            if tiling.packed and each is not None:
                arguments[1 + at] = relax.const(pack(each, len(gates), tiling.units), str(each.dtype))
        kernel = self.builder_.add_func(recurrence_kernel(recurrence, tiling), recurrence.cell.lower())
        return relax.call_tir(kernel, relax.Tuple(arguments), list(call.ty.fields))


def _recurrence_of(function: Any) -> Recurrence | None:
    """What the kernel computes; None for another function. A module may come from a file, with an attribute that does
    not belong to its function.
    """
    text = function.attrs.get(RECURRENCE) if function.attrs else None
    if text is None:
        return None
    try:
        recurrence = Recurrence.from_json(str(text))
        own = recurrence_kernel(recurrence, Tiling())
    except Exception:  # noqa: BLE001  anything may stand there; the function stays as it is
        return None
    return recurrence if tvm_ffi.structural_equal(function, own) else None
