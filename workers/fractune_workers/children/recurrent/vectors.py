"""Passes that give the recurrent kernels of a model their tilings: the computed one of a target, or a chosen one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from fractune_core.errors import BadModel
from fractune_workers.children.recurrent.kernel import RECURRENCE, TILING, recurrence_kernel
from fractune_workers.children.recurrent.packing import Tiling, pack, unpack
from fractune_workers.children.recurrent.recurrence import Recurrence
from fractune_workers.children.recurrent.tilings import tiling_for
from fractune_workers.children.rewriting.expressions import numbers_of, operator_of, rewritten

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
