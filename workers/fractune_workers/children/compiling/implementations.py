"""Mixes implementations of a model's operators: the same model, prepared in several ways, call by call.

Every way to prepare a model makes the same calls in the same order. Only the called functions differ, and their
weights. Attention that a model computes by several calls may become one function, which only Triton computes. The
model keeps its calls, and a bundle's variant may have the one function in their place.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, s_tir
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor
from tvm_ffi import structural_equal

from fractune_core.operators import DIRECT, TRITON
from fractune_workers.children.importing.passes import direct_hash
from fractune_workers.children.rewriting import expressions
from fractune_workers.children.triton_kernels.attention.recognition import attention_of
from fractune_workers.children.triton_kernels.sources import alternative, marked
from fractune_workers.children.triton_kernels.sums import Unfit
from fractune_workers.children.tvm_api.tir import parts_of
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
    for name in expressions.called_functions(direct):
        mixer.builder_.update_func(name, mixer.visit_expr(direct[name]))
    return mixer.builder_.get()


def calls_of(mod: tvm.IRModule) -> list[Any]:
    """The calls of operators in the functions of a prepared module, in their order."""
    collector = _Collector()
    for name in expressions.called_functions(mod):
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
        if expressions.operator_of(op) == _CALL:
            self.calls.append(op)


@mutator
class _Mixer(PyExprMutator):
    """Puts other calls in the place of some, which come one after the other, None for one that stays."""

    def __init__(self, mod: tvm.IRModule, others: Iterator[tuple[tvm.IRModule, Any] | None]) -> None:
        super().__init__(mod)
        self._others = others

    def visit_call_(self, op: Any) -> Any:
        visited = super().visit_call_(op)
        other = next(self._others) if expressions.operator_of(op) == _CALL else None
        if other is None:
            return visited
        mod, call = other
        function = self.builder_.add_func(mod[call.args[0]], str(call.args[0].name_hint))
        operands = [_operand(*both) for both in zip(visited.args[1].fields, call.args[1].fields, strict=True)]
        return relax.Call(visited.op, [function, relax.Tuple(operands)], visited.attrs, visited.ty_args)


def _operand(own: Any, other: Any) -> Any:
    """Weights in another layout come from the other module; every other operand stays."""
    return other if expressions.is_constant(other) and expressions.shape_of(other) != expressions.shape_of(own) else own


_NAME = "attention"
_PLAIN = 2
"""arguments of a call without numbers for its function: the function and its operands"""


@dataclass(frozen=True)
class Chain:
    """Calls that together compute attention."""

    calls: tuple[int, ...]
    """by their place among the model's calls of operators"""
    function: Any
    """computes them all"""
    operands: tuple[tuple[int, int], ...]
    """of the function: each as a call and the place among its operands"""

    direct_hash: str
    """of the function"""


def chains_of(mod: tvm.IRModule) -> list[Chain]:
    """The attention of a prepared module. Values within a chain are used nowhere else."""
    return list(_Finder(mod).chains())


def workloads_of(chains: Sequence[Chain]) -> dict[str, dict[str, Workload]]:
    """The workloads of the chains' functions by implementation, by direct hash."""
    return {
        chain.direct_hash: {
            DIRECT: Workload.of(_module_of(chain.function)),
            TRITON: Workload.of(_module_of(marked(chain.function))),
        }
        for chain in chains
    }


def with_attention(mod: tvm.IRModule, chains: Sequence[Chain]) -> tvm.IRModule:
    """The prepared module with one marked function in the place of each of the chains."""
    if not chains:
        return mod
    replacer = _Replacer(mod, {chain.calls[-1]: chain for chain in chains})
    for name in expressions.called_functions(mod):
        replacer.builder_.update_func(name, replacer.visit_expr(mod[name]))
    without_the_others: tvm.IRModule = relax.transform.DeadCodeElimination()(replacer.builder_.get())
    return without_the_others


def names_outside(mod: tvm.IRModule, chains: Sequence[Chain]) -> set[str]:
    """The direct hashes of the operators that a prepared module calls outside of these chains."""
    inside = {at for chain in chains for at in chain.calls}
    return {name for at, name in enumerate(hashes_of(mod)) if at not in inside}


@visitor
class _UsesCollector(PyExprVisitor):
    """The calls of operators with their variables, and how often each variable is used."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any]] = []
        self.uses: Counter[Any] = Counter()

    def visit_var_binding_(self, binding: Any) -> None:
        if expressions.operator_of(binding.value) == _CALL:
            self.calls.append((binding.var, binding.value))
        self.visit_expr(binding.value)

    def visit_var_(self, op: Any) -> None:
        self.uses[op] += 1

    def visit_dataflow_var_(self, op: Any) -> None:
        self.uses[op] += 1


class _Finder:
    def __init__(self, mod: tvm.IRModule) -> None:
        collector = _UsesCollector()
        for name in expressions.called_functions(mod):
            collector.visit_expr(mod[name])
        self._mod = mod
        self._calls, self._uses = collector.calls, collector.uses
        self._made_at = {var: at for at, (var, _) in enumerate(self._calls)}
        self._users: dict[Any, list[int]] = {}
        """calls by operand, one for each time that it is given"""
        for at, (_, call) in enumerate(self._calls):
            for operand in call.args[1].fields:
                self._users.setdefault(operand, []).append(at)

    def chains(self) -> Iterator[Chain]:
        for at in range(len(self._calls)):
            chain = self._chain_around(at) if self._is_plain(at) and self._is_softmax(at) else None
            if chain is not None:
                yield chain

    def _chain_around(self, softmax: int) -> Chain | None:
        """The chain with this softmax: scores before it, a product behind it, and the copies around these."""
        after, before = self._next(softmax), self._before(softmax)
        if after is None or len(before) != 1:
            return None
        chosen = {*before, softmax, after}
        chain = self._chain(chosen)
        if chain is None:
            return None
        copies = [*self._before(before[0]), *self._before(after), self._next(after)]
        for each in copies:
            if each is not None and each not in chosen and self._is_copy(each):
                longer = self._chain(chosen | {each})
                if longer is not None:
                    chosen.add(each)
                    chain = longer
        return chain

    def _chain(self, chosen: Collection[int]) -> Chain | None:
        """The chain of these calls, if they are attention."""
        calls = sorted(chosen)
        inner = {self._calls[at][0] for at in calls}
        operands: dict[Any, tuple[int, int]] = {}
        for at in calls:
            for place, operand in enumerate(self._calls[at][1].args[1].fields):
                if operand not in inner:
                    operands.setdefault(operand, (at, place))
        function = self._merged([self._calls[at] for at in calls], list(operands))
        try:
            attention_of(function)
        except Unfit:
            return None
        function = alternative(function)
        return Chain(tuple(calls), function, tuple(operands.values()), direct_hash(_module_of(function)))

    def _merged(self, calls: Sequence[tuple[Any, Any]], operands: Sequence[Any]) -> Any:
        """One TIR function of several calls, as TVM fuses operators."""
        builder = relax.BlockBuilder()
        own = {name: builder.add_func(self._mod[name], name.name_hint) for name in {call.args[0] for _, call in calls}}
        known = {operand: relax.Var(f"x{at}", operand.ty) for at, operand in enumerate(operands)}
        with builder.function(_NAME, list(known.values()), attrs={"Primitive": True}, private=True):
            with builder.dataflow():
                for var, call in calls:
                    given = [known[operand] for operand in call.args[1].fields]
                    made = relax.call_tir(own[call.args[0]], given, out_ty=var.ty)
                    known[var] = builder.emit(made) if var is not calls[-1][0] else builder.emit_output(made)
            builder.emit_func_output(known[calls[-1][0]])
        inputs = [relax.Var(f"x{at}", operand.ty) for at, operand in enumerate(operands)]
        with builder.function("main", inputs):
            (fused,) = (each for each in builder.get().get_global_vars() if each.name_hint == _NAME)
            builder.emit_func_output(builder.emit(relax.Call(fused, inputs)))
        return relax.transform.FuseTIR()(builder.get())[_NAME]

    def _next(self, at: int) -> int | None:
        """The call that alone uses the result of a call."""
        var = self._calls[at][0]
        users = self._users.get(var, [])
        return users[0] if len(users) == 1 and self._uses[var] == 1 and self._is_plain(users[0]) else None

    def _before(self, at: int) -> list[int]:
        """The calls whose results only this call uses."""
        made = (self._made_at.get(operand) for operand in self._calls[at][1].args[1].fields)
        return [each for each in made if each is not None and self._next(each) == at and self._is_plain(each)]

    def _is_plain(self, at: int) -> bool:
        """Whether a call has one result, and sizes that are known."""
        var, call = self._calls[at]
        return len(call.args) == _PLAIN and isinstance(var.ty, relax.TensorType) and expressions.has_fixed_shapes(call)

    def _is_softmax(self, at: int) -> bool:
        """Whether a function begins with the largest number of a row, and what follows is for `attention_of`."""
        blocks = _blocks(self._mod[self._calls[at][1].args[0]])
        return bool(blocks) and blocks[0].init is not None and type(blocks[0].body.value).__name__ == "Max"

    def _is_copy(self, at: int) -> bool:
        blocks = _blocks(self._mod[self._calls[at][1].args[0]])
        return all(each.init is None and type(each.body.value).__name__ == "TensorLoad" for each in blocks)


def _blocks(function: Any) -> list[Any]:
    """The blocks of a function that each store one value."""
    return [each for each in parts_of(function.body, s_tir.SBlock) if type(each.body).__name__ == "BufferStore"]


def _module_of(function: Any) -> tvm.IRModule:
    normalized: tvm.IRModule = tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(function)
    return normalized


@mutator
class _Replacer(PyExprMutator):
    """Calls one function in the place of a chain's last call. The others are left without a use."""

    def __init__(self, mod: tvm.IRModule, chains: Mapping[int, Chain]) -> None:
        super().__init__(mod)
        self._chains = chains
        """by the place of their last call"""
        self._calls: list[Any] = []

    def visit_call_(self, op: Any) -> Any:
        visited = super().visit_call_(op)
        if expressions.operator_of(op) != _CALL:
            return visited
        self._calls.append(visited)
        chain = self._chains.get(len(self._calls) - 1)
        if chain is None:
            return visited
        called = self.builder_.add_func(marked(chain.function), _NAME)
        operands = [self._calls[at].args[1].fields[place] for at, place in chain.operands]
        return relax.Call(visited.op, [called, relax.Tuple(operands)], visited.attrs, visited.ty_args)
