"""Mixes implementations of a model's operators: the same model, prepared in several ways, call by call.

Every way to prepare a model makes the same calls in the same order. Only the called functions differ, and their
weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor
from tvm_ffi import structural_equal

from fractune_workers.children.importing.passes import direct_hash
from fractune_workers.children.rewriting.expressions import called_functions, is_constant, operator_of, shape_of
from fractune_workers.children.tvm_api.traces import Workload

_CALL = "call_tir"


def implementations_of(direct: tvm.IRModule, other: tvm.IRModule, called: Sequence[str]) -> dict[str, Workload]:
    """The operators of the prepared module `other` that differ from those of `direct`: their workloads, each by the
    direct hash of its operator in `direct`. `called` are the direct hashes of what `direct` calls. Empty when the two
    modules do not make the same calls.
    """
    own, theirs = calls_of(direct), calls_of(other)
    if len(own) != len(theirs):
        return {}
    together = zip(called, own, theirs, strict=True)
    calls = {(one.args[0], another.args[0]): (name, one, another) for name, one, another in together}
    pairs = ((name, function_of(direct, one), function_of(other, another)) for name, one, another in calls.values())
    return {name: Workload.of(another) for name, one, another in pairs if not structural_equal(one, another)}


def with_implementations(
    direct: tvm.IRModule, others: Mapping[str, tvm.IRModule], chosen: Mapping[str, str], called: Sequence[str]
) -> tvm.IRModule:
    """The prepared module `direct`, which calls the operators `called` (direct hashes), with other
    implementations of the operators in `chosen` (name of an implementation by direct hash). They come with their
    weights from the module of that name in `others`.
    """
    theirs = {name: calls_of(other) for name, other in others.items()}
    names = [chosen.get(name, "") for name in called]
    mixer = _Mixer(direct, ((others[name], theirs[name][at]) if name else None for at, name in enumerate(names)))
    for name in called_functions(direct):
        mixer.builder_.update_func(name, mixer.visit_expr(direct[name]))
    return mixer.builder_.get()


def calls_of(mod: tvm.IRModule) -> list[Any]:
    """The calls of operators in the functions of a prepared module, in their order."""
    collector = _Collector()
    for name in called_functions(mod):
        collector.visit_expr(mod[name])
    return collector.calls


def hashes_of(mod: tvm.IRModule) -> list[str]:
    """The direct hashes of the operators that a prepared module calls, call by call."""
    calls = calls_of(mod)
    known = {call.args[0]: call for call in calls}
    hashes = {function: direct_hash(function_of(mod, call)) for function, call in known.items()}
    return [hashes[call.args[0]] for call in calls]


def function_of(mod: tvm.IRModule, call: Any) -> tvm.IRModule:
    """The module of the one operator that is called, as MetaSchedule's tasks have it."""
    normalized: tvm.IRModule = tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(mod[call.args[0]])
    return normalized


@visitor
class _Collector(PyExprVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def visit_call_(self, op: Any) -> None:
        if operator_of(op) == _CALL:
            self.calls.append(op)


@mutator
class _Mixer(PyExprMutator):
    """Puts other calls in the place of some, which come one after the other, None for one that stays."""

    def __init__(self, mod: tvm.IRModule, others: Iterator[tuple[tvm.IRModule, Any] | None]) -> None:
        super().__init__(mod)
        self._others = others

    def visit_call_(self, op: Any) -> Any:
        visited = super().visit_call_(op)
        other = next(self._others) if operator_of(op) == _CALL else None
        if other is None:
            return visited
        mod, call = other
        function = self.builder_.add_func(mod[call.args[0]], str(call.args[0].name_hint))
        operands = [_operand(*both) for both in zip(visited.args[1].fields, call.args[1].fields, strict=True)]
        return relax.Call(visited.op, [function, relax.Tuple(operands)], visited.attrs, visited.ty_args)


def _operand(own: Any, other: Any) -> Any:
    """Weights in another layout come from the other module; every other operand stays."""
    return other if is_constant(other) and shape_of(other) != shape_of(own) else own
