"""Caches of decoders: an output that is an input and new rows behind it, or an input with new rows at some place.

Such a concatenation becomes a kernel of its own, which no other operator is fused with. The importer emits a kernel of
the second form. An entry of the compiled model writes the new rows into the caller's memory instead
(`children/compiling/cache_in_place.py`).
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, topi
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor

from fractune_workers.children.rewriting.expressions import OPAQUE, bindings_of, has_fixed_shapes, operator_of, shape_of

_CACHES = "fractune.caches"
"""Attribute of `main`: JSON of its caches"""
_PARTS = 2
_APPENDS = "fractune.appends"
_UNUSED, _TOKEN = "fractune.unused_rows", "fractune.token"
APPENDS = {_APPENDS: 1, **OPAQUE}
"""Attributes of a kernel. Its operands are new rows (batch, tokens, heads * width), the first places that they get
(batch), and a cache before (batch, heads, rows, width). The cache behind has the same shape."""
COUNTS_UNUSED = {_UNUSED: 1, **OPAQUE}
"""Attributes of a kernel that gives the number of rows before those in use (int64, one element): 0 in `main`"""
TELLS_TOKEN = {_TOKEN: 1, **OPAQUE}
"""Attributes of a kernel that gives the number of the last token of a call (int64, one element)"""
_ROWS_AXIS = 2
_APPENDED = 3


@dataclass(frozen=True)
class Cache:
    """One of `main`: the places of the input and of the output, and the axis of the rows."""

    input: int
    output: int
    axis: int


def caches_of(mod: tvm.IRModule) -> list[Cache]:
    """Those that `with_caches` has found."""
    text = str((mod["main"].attrs or {}).get(_CACHES, "[]"))
    return [Cache(**each) for each in json.loads(text)]


def with_caches(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with a kernel for each cache of `main`, which has an attribute for them."""
    main = mod["main"]
    found = [*_found(main), *_appended(mod, main)]
    changed = mod.clone()
    changed.update_func(mod.get_global_var("main"), main.without_attr(_CACHES))
    if not found:
        return changed
    appender = _Appender(changed, [call for call, _ in found if operator_of(call) == "concat"])
    appended = appender.visit_expr(changed["main"])
    text = json.dumps([vars(cache) for _, cache in found])
    appender.builder_.update_func(changed.get_global_var("main"), appended.with_attr(_CACHES, text))
    return appender.builder_.get()


def _found(main: Any) -> Iterator[tuple[Any, Cache]]:
    """The concatenations that are caches: nothing else reads their inputs."""
    facts = _Facts(main)
    for var, value in facts.values.items():
        if operator_of(value) != "concat" or var not in facts.places or not has_fixed_shapes(value):
            continue
        fields = facts.values.get(value.args[0], value.args[0]).fields
        if len(fields) == _PARTS and fields[0] in facts.own:
            yield value, Cache(facts.own[fields[0]], facts.places[var], int(value.attrs.axis) % len(shape_of(value)))


def _appended(mod: tvm.IRModule, main: Any) -> Iterator[tuple[Any, Cache]]:
    """The calls of kernels that append at some place. A module may come from a file, so shapes are checked."""
    facts = _Facts(main)
    for var, value in facts.values.items():
        if operator_of(value) != "call_tir" or _APPENDS not in (mod[value.args[0]].attrs or {}):
            continue
        operands = list(getattr(value.args[1], "fields", ()))
        if len(operands) != _APPENDED or var not in facts.places or operands[2] not in facts.own:
            continue
        new, start, past = map(shape_of, operands)
        fits = len(past) == 4 and new[::2] == (past[0], past[1] * past[3]) and start == past[:1] and new[1] <= past[2]
        if fits and len(new) == _APPENDED and shape_of(value) == past and str(operands[1].ty.dtype) == "int32":
            yield value, Cache(facts.own[operands[2]], facts.places[var], _ROWS_AXIS)


def counts_unused(function: Any) -> bool:
    """Whether a kernel has the attributes `COUNTS_UNUSED`."""
    return _UNUSED in (function.attrs or {})


def tells_token(function: Any) -> bool:
    """Whether a kernel has the attributes `TELLS_TOKEN`."""
    return _TOKEN in (function.attrs or {})


def new_rows(mod: tvm.IRModule) -> int:
    """The rows that a call appends to each cache: its tokens. 0 without caches, and where these differ."""
    main = mod["main"]
    values = {binding.var: binding.value for binding in bindings_of(main)}
    outputs, found = outputs_of(main), set[int]()
    for cache in caches_of(mod):
        call = values[_source(outputs[cache.output], values)]
        first, second, *places = map(shape_of, call.args[1].fields)
        found.add(first[1] if places else second[cache.axis])
    return found.pop() if len(found) == 1 else 0


class _Facts:
    """Of `main`: its values by variable, the places of its outputs, and those of inputs that are read once."""

    def __init__(self, main: Any) -> None:
        self.values = {binding.var: binding.value for binding in bindings_of(main)}
        self.places = {_source(each, self.values): at for at, each in enumerate(outputs_of(main))}
        uses = _Uses()
        for value in [*self.values.values(), main.body.body]:
            uses.visit_expr(value)
        self.own = {var: at for at, var in enumerate(main.params) if uses.count[var] == 1}


def outputs_of(function: Any) -> list[Any]:
    """What a function returns: the fields of a tuple, or one value."""
    values = {binding.var: binding.value for binding in bindings_of(function)}
    result = function.body.body
    while result in values and isinstance(values[result], relax.Var | relax.Tuple):
        result = values[result]
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]


def _source(var: Any, values: Mapping[Any, Any]) -> Any:
    while isinstance(values.get(var), relax.Var):
        var = values[var]
    return var


@visitor
class _Uses(PyExprVisitor):
    """How often each variable of a function is used."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[Any] = Counter()

    def visit_var_(self, op: Any) -> None:
        self.count[op] += 1

    def visit_dataflow_var_(self, op: Any) -> None:
        self.count[op] += 1


@mutator
class _Appender(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, calls: Sequence[Any]) -> None:
        super().__init__(mod)
        self._calls = calls

    def visit_call_(self, op: Any) -> Any:
        call = super().visit_call_(op)
        if not any(op.same_as(each) for each in self._calls):
            return call
        fields = call.args[0] if isinstance(call.args[0], relax.Tuple) else self.builder_.lookup_binding(call.args[0])
        hint = {"primfunc_name_hint": "cache", "primfunc_attrs": OPAQUE}
        return self.builder_.call_te(topi.concatenate, list(fields.fields), int(call.attrs.axis), **hint)
