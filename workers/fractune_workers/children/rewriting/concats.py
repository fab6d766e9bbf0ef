"""Concatenations that are caches of decoders, and those without a kernel.

Where all axes before the axis of a concatenation are 1, each part is a contiguous slice of the result. The operator
that computes a part can write it there. This concatenation stays a call of Relax; compiling lays its parts into the
result (`children/compiling/concat_in_place.py`).

A cache is an output that is an input and new rows behind it, or an input with new rows at some place. It becomes a
kernel of its own, which no other operator is fused with. The importer emits a kernel of the second form. An entry of
the compiled model writes the new rows into the caller's memory instead (`children/compiling/cache_in_place.py`).
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax, topi
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor

from fractune_workers.children.rewriting import expressions

_CACHES = "fractune.caches"
"""Attribute of `main`: JSON of its caches"""
_PARTS = 2
_APPENDS = "fractune.appends"
_UNUSED, _TOKEN = "fractune.unused_rows", "fractune.token"
APPENDS = {_APPENDS: 1, **expressions.OPAQUE}
"""Attributes of a kernel. Its operands are new rows (batch, tokens, heads * width), the first places that they get
(batch), and a cache before (batch, heads, rows, width). The cache behind has the same shape."""
COUNTS_UNUSED = {_UNUSED: 1, **expressions.OPAQUE}
"""Attributes of a kernel that gives the number of rows before those in use (int64, one element): 0 in `main`"""
TELLS_TOKEN = {_TOKEN: 1, **expressions.OPAQUE}
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
    appender = _Appender(changed, [call for call, _ in found if expressions.operator_of(call) == "concat"])
    appended = appender.visit_expr(changed["main"])
    text = json.dumps([vars(cache) for _, cache in found])
    appender.builder_.update_func(changed.get_global_var("main"), appended.with_attr(_CACHES, text))
    return appender.builder_.get()


def _found(main: Any) -> Iterator[tuple[Any, Cache]]:
    """The concatenations that are caches: nothing else reads their inputs."""
    facts = _Facts(main)
    for var, value in facts.values.items():
        if (
            expressions.operator_of(value) != "concat"
            or var not in facts.places
            or not expressions.has_fixed_shapes(value)
        ):
            continue
        fields = facts.values.get(value.args[0], value.args[0]).fields
        if len(fields) == _PARTS and fields[0] in facts.own:
            yield (
                value,
                Cache(
                    facts.own[fields[0]], facts.places[var], int(value.attrs.axis) % len(expressions.shape_of(value))
                ),
            )


def _appended(mod: tvm.IRModule, main: Any) -> Iterator[tuple[Any, Cache]]:
    """The calls of kernels that append at some place. A module may come from a file, so shapes are checked."""
    facts = _Facts(main)
    for var, value in facts.values.items():
        if expressions.operator_of(value) != "call_tir" or _APPENDS not in (mod[value.args[0]].attrs or {}):
            continue
        operands = list(getattr(value.args[1], "fields", ()))
        if len(operands) != _APPENDED or var not in facts.places or operands[2] not in facts.own:
            continue
        new, start, past = map(expressions.shape_of, operands)
        fits = len(past) == 4 and new[::2] == (past[0], past[1] * past[3]) and start == past[:1] and new[1] <= past[2]
        if (
            fits
            and len(new) == _APPENDED
            and expressions.shape_of(value) == past
            and str(operands[1].ty.dtype) == "int32"
        ):
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
    values = {binding.var: binding.value for binding in expressions.bindings_of(main)}
    outputs, found = outputs_of(main), set[int]()
    for cache in caches_of(mod):
        call = values[_source(outputs[cache.output], values)]
        first, second, *places = map(expressions.shape_of, call.args[1].fields)
        found.add(first[1] if places else second[cache.axis])
    return found.pop() if len(found) == 1 else 0


class _Facts:
    """Of `main`: its values by variable, the places of its outputs, and those of inputs that are read once."""

    def __init__(self, main: Any) -> None:
        self.values = {binding.var: binding.value for binding in expressions.bindings_of(main)}
        self.places = {_source(each, self.values): at for at, each in enumerate(outputs_of(main))}
        uses = _Uses()
        for value in [*self.values.values(), main.body.body]:
            uses.visit_expr(value)
        self.own = {var: at for at, var in enumerate(main.params) if uses.count[var] == 1}


def outputs_of(function: Any) -> list[Any]:
    """What a function returns: the fields of a tuple, or one value."""
    values = {binding.var: binding.value for binding in expressions.bindings_of(function)}
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
        hint = {"primfunc_name_hint": "cache", "primfunc_attrs": expressions.OPAQUE}
        return self.builder_.call_te(topi.concatenate, list(fields.fields), int(call.attrs.axis), **hint)


_CONCAT = "concat"
CONCAT = f"relax.{_CONCAT}"
_ALIGNMENT_BITS = 64 * 8
"""Compiled code expects a tensor to begin at a multiple of 64 bytes"""


def kept(builder: relax.BlockBuilder, call: Any) -> Any:
    """Legalize `relax.concat`; a call whose parts are aligned slices of its result stays unchanged."""
    return call if _has_slices(call) else expressions.legalized_by_tvm(builder, call)


def settled(mod: tvm.IRModule) -> tvm.IRModule:
    """The fused module with a kernel for each concatenation whose parts cannot be laid into its result.

    An operator of the same block must compute each part; the part may have another shape since. Inputs and weights have
    places already. A part belongs to one result only.
    """
    in_place = set[Any]().union(*map(_in_place, expressions.relax_functions(mod).values()))
    return expressions.rewritten(mod, _Settler(mod.clone(), in_place))


def _in_place(function: Any) -> set[Any]:
    """The calls that can be laid out, in the blocks of the function itself."""
    found, taken = set[Any](), set[Any]()
    for block in function.body.blocks:
        computed: dict[Any, Any] = {}
        """by variable: the one of the operator that computed it, before it was seen in another shape"""
        for binding in block.bindings:
            var, value = binding.var, binding.value
            name = expressions.operator_of(value)
            if name in ("call_tir", _CONCAT) and isinstance(value.ty, relax.TensorType):
                computed[var] = var
            elif name == "reshape" and value.args[0] in computed:
                computed[var] = computed[value.args[0]]
            if name == _CONCAT:
                fields = value.args[0].fields
                parts = {computed.get(field) for field in fields}
                if None not in parts and len(parts) == len(fields) and not parts & taken:
                    taken |= parts
                    found.add(value)
    return found


def _has_slices(call: Any) -> bool:
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple) or not expressions.has_fixed_shapes(call):
        return False
    shape = expressions.shape_of(call)
    axis = int(call.attrs.axis) % len(shape)
    return prod(shape[:axis]) == 1 and all(
        expressions.bits_of(part) % _ALIGNMENT_BITS == 0 for part in parts.fields[:-1]
    )


@mutator
class _Settler(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, in_place: set[Any]) -> None:
        super().__init__(mod)
        self._in_place = in_place

    def visit_call_(self, call: Any) -> Any:
        visited = super().visit_call_(call)
        needs_kernel = expressions.operator_of(call) == _CONCAT and call not in self._in_place
        return expressions.legalized_by_tvm(self.builder_, visited) if needs_kernel else visited
