"""Functions around an `If`: what lies before it and after it becomes functions of their own.

TVM fuses operators within a dataflow block, and an `If` stands in none. With the straight parts apart, each function
has one dataflow block or none, as every later pass expects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relax

from fractune_workers.children.rewriting.expressions import relax_functions


def with_sections(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the straight parts of each function that has an `If` as functions of their own."""
    branching = {name: function for name, function in relax_functions(mod).items() if _has_if(function)}
    if not branching:
        return mod
    builder = relax.BlockBuilder(mod)
    for name, function in branching.items():
        builder.update_func(name, _Sections(builder, function).made())
    return relax.transform.Normalize()(builder.get())


def _has_if(function: Any) -> bool:
    return any(isinstance(binding.value, relax.If) for binding in _bindings(function))


def _bindings(function: Any) -> list[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]


class _Sections:
    def __init__(self, builder: relax.BlockBuilder, function: Any) -> None:
        self._builder, self._function = builder, function
        self._known: dict[Any, Any] = {}
        """by a variable of the function: the value in the new one"""
        self._made: list[Any] = []

    def made(self) -> Any:
        function = self._function
        bindings, run = _bindings(function), list[Any]()
        for at, binding in enumerate(bindings):
            if isinstance(binding.value, relax.If):
                self._section(run, bindings[at:])
                self._bind(binding.var, binding.value)
                run = []
            else:
                run.append(binding)
        self._section(run, [])
        body = relax.SeqExpr([relax.BindingBlock(self._made)], _replaced(function.body.body, self._known))
        return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)

    def _bind(self, var: Any, value: Any) -> Any:
        bound = relax.Var(var.name, var.ty)
        self._made.append(relax.VarBinding(bound, _replaced(value, self._known)))
        self._known[var] = bound
        return bound

    def _section(self, run: Sequence[Any], later: Sequence[Any]) -> None:
        """A call of a function that computes the bindings in `run`; those that only take a tuple apart stay."""
        if not any(isinstance(binding.value, relax.Call) for binding in run):
            for binding in run:
                self._bind(binding.var, binding.value)
            return
        own = dict.fromkeys(binding.var for binding in run)
        read = [var for binding in run for var in _variables(binding.value)]
        free = [var for var in dict.fromkeys(read) if var not in own]
        used = {var for binding in later for var in _variables(binding.value)}
        used.update(_variables(self._function.body.body))
        results = [var for var in own if var in used]
        section = self._builder.add_func(_function(run, free, results), "section")
        made = relax.Var("section", relax.TupleType([var.ty for var in results]))
        arguments = [_replaced(var, self._known) for var in free]
        self._made.append(relax.VarBinding(made, relax.Call(section, arguments)))
        for at, var in enumerate(results):
            self._known[var] = relax.Var(var.name, var.ty)
            self._made.append(relax.VarBinding(self._known[var], relax.TupleGetItem(made, at)))


def _function(run: Sequence[Any], free: Sequence[Any], results: Sequence[Any]) -> Any:
    """A function of the variables in `free` that returns the `results` of the bindings."""
    params = [relax.Var(var.name, var.ty) for var in free]
    known = dict(zip(free, params, strict=True))
    builder = relax.BlockBuilder()
    with builder.function("section", params, private=True):
        with builder.dataflow():
            for binding in run:
                known[binding.var] = builder.emit(_replaced(binding.value, known), binding.var.name)
            made = builder.emit_output(relax.Tuple([known[var] for var in results]))
        builder.emit_func_output(made)
    return next(iter(builder.get().functions.values()))


def _variables(expr: Any) -> Iterator[Any]:
    if isinstance(expr, relax.Var):
        yield expr
    elif isinstance(expr, relax.If):
        yield from _variables(expr.cond)
        yield from _variables(expr.true_branch)
        yield from _variables(expr.false_branch)
    elif isinstance(expr, relax.SeqExpr):
        for block in expr.blocks:
            for binding in block.bindings:
                yield from _variables(binding.value)
        yield from _variables(expr.body)
    else:
        for part in _parts(expr):
            yield from _variables(part)


def _parts(expr: Any) -> Sequence[Any]:
    if isinstance(expr, relax.Tuple):
        return list(expr.fields)
    if isinstance(expr, relax.TupleGetItem):
        return [expr.tuple_value]
    return list(expr.args) if isinstance(expr, relax.Call) else []


def _replaced(expr: Any, known: dict[Any, Any]) -> Any:
    """The expression with other variables."""
    if isinstance(expr, relax.Var):
        return known.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_replaced(field, known) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(_replaced(expr.tuple_value, known), expr.index)
    if isinstance(expr, relax.Call):
        return relax.Call(expr.op, [_replaced(each, known) for each in expr.args], expr.attrs, expr.ty_args)
    if isinstance(expr, relax.If):
        branches = [_replaced(each, known) for each in (expr.true_branch, expr.false_branch)]
        return relax.If(_replaced(expr.cond, known), *branches)
    if isinstance(expr, relax.SeqExpr):
        # Of a branch: one call, perhaps bound to a variable.
        inner = dict(known)
        bindings = []
        for block in expr.blocks:
            for binding in block.bindings:
                inner[binding.var] = relax.Var(binding.var.name, binding.var.ty)
                bindings.append(relax.VarBinding(inner[binding.var], _replaced(binding.value, inner)))
        blocks = [relax.BindingBlock(bindings)] if bindings else []
        return relax.SeqExpr(blocks, _replaced(expr.body, inner))
    return expr
