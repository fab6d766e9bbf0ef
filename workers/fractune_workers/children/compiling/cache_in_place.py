"""Other entries of a model: its caches are buffers of the caller, and the new rows are written into them.

`main_cached` takes the parameters of `main`. In the place of a cache's input it takes a buffer whose axis of rows has
any size. The rows before lie there already, the entry writes the new ones behind them, and all operators read both
there. It returns the other outputs. So no cache is copied, and the caller chooses which rows of a larger buffer these
are. `main_last` returns one of the outputs for one token alone. The caller gives the token's number.
"""

from collections.abc import Mapping, Sequence
from math import gcd, prod
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from fractune_core.files.manifests import ALIGNMENT_BYTES, MAIN_CACHED, MAIN_LAST
from fractune_workers.children.compiling.concat_in_place import into_slice
from fractune_workers.children.layouts.last_token import LAST, without_function_of_last_token
from fractune_workers.children.rewriting.concats import Cache, caches_of, counts_unused
from fractune_workers.children.rewriting.expressions import OPAQUE, has_fixed_shapes, operator_of, shape_of

_ALLOCATION = "builtin.alloc_tensor"
_VIEW = "reshape"
"""a tensor of another shape over the same memory"""
_ROWS = "rows"
_LANES = 16
"""of a loop that copies"""
_USED = "fractune.rows"
"""Attribute of the entry: the rows of a buffer that it uses"""


class _Unfit(Exception):
    """An operator reads a cache in a form that a larger buffer does not have."""


def with_entries_for_caches(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with `main_cached`, and with `main_last` in the place of its function for one token. Its tensors must
    be allocated already, and not planned. Without entries where there are no caches, and where an operator reads a
    cache in another shape.
    """
    caches, plain = caches_of(mod), without_function_of_last_token(mod)
    has_last = len(plain.functions) < len(mod.functions)
    try:
        made = _Entry(plain, plain["main"], caches).module(MAIN_CACHED) if caches else plain
        return _Entry(made, mod[LAST], caches).module(MAIN_LAST) if has_last else made
    except _Unfit:
        return plain


def rows_of(function: Any) -> int | None:
    """The rows that an entry uses of each buffer; None for an entry without buffers."""
    used = (function.attrs or {}).get(_USED)
    return None if used is None else int(used)


def has_unused_rows(mod: tvm.IRModule) -> bool:
    """Whether the model itself hides the rows of its caches that are not in use."""
    return any(counts_unused(each) for each in mod.functions.values())


class _Entry:
    def __init__(self, mod: tvm.IRModule, function: Any, caches: Sequence[Cache]) -> None:
        """`function`: `main`, or one with its parameters and caches."""
        self._mod, self._main = mod, function
        self._builder = relax.BlockBuilder(mod.clone())
        bindings = [binding for block in self._main.body.blocks for binding in block.bindings]
        values = {binding.var: binding.value for binding in bindings}
        outputs = list(_tensors_of(self._main.body.body, values))
        self._bindings = bindings
        self._left = [each for at, each in enumerate(outputs) if at not in {cache.output for cache in caches}]
        self._params = list(self._main.params)
        self._caches: dict[Any, Cache] = {}
        """by the parameter of the rows before"""
        self._held: dict[Any, tuple[Any, int]] = {}
        """by a tensor of `main` that is a cache: the buffer, and the axis of its rows"""
        self._pasts = {self._params[cache.input] for cache in caches}
        rows = tirx.Var(_ROWS, "int64")
        self._used = max(shape_of(outputs[cache.output])[cache.axis] for cache in caches)
        for cache in caches:
            past, made = self._params[cache.input], _allocation_of(outputs[cache.output], values)
            if made is None:
                raise _Unfit
            buffer = relax.Var(past.name, relax.TensorType(_with_rows(shape_of(past), cache.axis, rows), past.ty.dtype))
            self._caches[past] = cache
            self._params[cache.input] = buffer
            self._held[made] = buffer, cache.axis

    def module(self, name: str) -> tvm.IRModule:
        """The module with the entry of this name."""
        placed = [each for binding in self._bindings for each in self._placed(binding)]
        if self._caches:  # of one the rows are not read by the kernel that appends to them
            raise _Unfit
        returned = relax.Tuple(self._left)
        body = relax.SeqExpr([relax.BindingBlock(placed)], returned)
        attrs = self._main.attrs
        entry = relax.Function(self._params, body, relax.TupleType([each.ty for each in self._left]), attrs=attrs)
        changed = self._builder.get()
        entry = relax.utils.copy_with_new_vars(entry).with_attrs({"global_symbol": name, _USED: self._used})
        changed[name] = entry
        return relax.transform.Normalize()(changed)

    def _placed(self, binding: Any) -> list[Any]:
        """The bindings in the place of one of `main`."""
        var, value = binding.var, binding.value
        if var in self._held:
            return []  # the caller's buffer
        if value in self._held:
            self._held[var] = self._held[value]
            return []
        if isinstance(value, relax.Tuple) and any(each in self._held for each in value.fields):
            return []  # the result of `main`
        if not isinstance(value, relax.Call):
            return [binding]
        if operator_of(value) == "reshape" and value.args[0] in self._held:
            return [self._reshaped(var, value)]
        past = next((each for each in value.args if each in self._caches), None)
        call = self._reading(value) if past is None else self._appending(value, self._caches.pop(past))
        return [relax.VarBinding(var, call) if isinstance(binding, relax.VarBinding) else binding]

    def _appending(self, call: Any, cache: Cache) -> Any:
        """The new rows alone are written: behind those before, or at the places of an operand."""
        *operands, result = call.args
        past = next(each for each in operands if each in self._pasts)
        new = [each for each in operands if each not in self._pasts]
        if result not in self._held or self._held[result][1] != cache.axis or len(new) not in (1, 2):
            raise _Unfit
        function = _append(shape_of(new[0]), shape_of(past), cache.axis, str(past.ty.dtype), at_places=len(new) > 1)
        return relax.Call(self._builder.add_func(function, "append"), [*new, self._held[result][0]])

    def _reading(self, call: Any) -> Any:
        """The call with a kernel that reads the buffers. TVM plans memory by calls, so each function has its own."""
        places = [at for at, each in enumerate(call.args) if each in self._held]
        if not places:
            return relax.Call(call.op, call.args, call.attrs, call.ty_args)
        if not isinstance(call.op, tvm.ir.GlobalVar) or places[-1] == len(call.args) - 1:
            raise _Unfit
        arguments = list(call.args)
        function = self._mod[call.op]
        for at in places:
            buffer, axis = self._held[arguments[at]]
            function = _of_buffer(function, at, axis)
            arguments[at] = buffer
        return relax.Call(self._builder.add_func(function, f"{call.op.name_hint}_cached"), arguments, call.attrs)

    def _reshaped(self, var: Any, call: Any) -> Any:
        """A view with other axes before the rows."""
        buffer, axis = self._held[call.args[0]]
        before, after = list(shape_of(call.args[0])), list(shape_of(call))
        found = next((at for at in range(len(after)) if after[at:] == before[axis:]), None)
        if found is None or prod(after[:found]) != prod(before[:axis]):
            raise _Unfit
        shape = _with_rows(tuple(after), found, buffer.ty.shape[axis])
        view = relax.Var(var.name, relax.TensorType(shape, buffer.ty.dtype))
        self._held[var] = view, found
        return relax.VarBinding(view, relax.op.reshape(buffer, relax.ShapeExpr(shape)))


def _tensors_of(result: Any, values: dict[Any, Any]) -> Any:
    """The tensors of a result: one, or a (nested) tuple of them."""
    while result in values and isinstance(values[result], relax.Var | relax.Tuple):
        result = values[result]
    if isinstance(result, relax.Tuple):
        for field in result.fields:
            yield from _tensors_of(field, values)
    else:
        yield result


def _allocation_of(output: Any, values: dict[Any, Any]) -> Any | None:
    """The variable of the allocation whose memory the output is."""
    while output in values:
        value = values[output]
        name = operator_of(value)
        if name == _ALLOCATION:
            return output if has_fixed_shapes(value) else None
        output = value.args[0] if name == _VIEW else value
    return None


def _with_rows(shape: Sequence[int], axis: int, rows: Any) -> list[Any]:
    return [rows if at == axis else tirx.IntImm("int64", dim) for at, dim in enumerate(shape)]


def _alignment(shape: Sequence[int], axis: int, dtype: str) -> int:
    """Bytes at whose multiples any row begins."""
    return gcd(ALIGNMENT_BYTES, prod(shape[axis + 1 :]) * tvm.DataType(dtype).bits // 8)


def _of_buffer(function: Any, parameter: int, axis: int) -> Any:
    """A kernel that reads its parameter from the beginning of a buffer with more rows."""
    ty = function.params[parameter].ty
    shape = [int(dim) for dim in ty.shape]
    rows = tirx.Var(f"{_ROWS}{parameter}", "int64")
    alignment = _alignment(shape, axis, str(ty.dtype))
    return into_slice(function, parameter, _with_rows(shape, axis, rows), axis, 0, alignment)


def _append(new: Sequence[int], past: Sequence[int], axis: int, dtype: str, *, at_places: bool) -> tirx.PrimFunc:
    """The kernel that writes new rows behind those before, or `at_places` of each batch; then the new rows are (batch,
    tokens, heads * width).
    """
    rows = tirx.Var(_ROWS, "int64")
    with IRBuilder() as made, builder.prim_func(is_private=True, s_tir=True):
        builder.func_name("append")
        builder.func_attr({"tirx.noalias": True, **OPAQUE})
        source = builder.arg("new", builder.buffer(tuple(new), dtype))
        places: Any = builder.arg("places", builder.buffer((past[0],), "int32")) if at_places else None
        shape, alignment = _with_rows(past, axis, rows), _alignment(past, axis, dtype)
        target: Any = builder.arg("cache", builder.buffer(tuple(shape), dtype, align=alignment))
        with builder.sblock("root"):
            builder.reads([])
            builder.writes([])
            if at_places:
                _copy_to_places(source, target, places, list(new), past)
            else:
                _copy(source, target, list(new), axis, int(past[axis]))
    return made.get()


def _copy(source: Any, target: Any, extents: list[int], axis: int, offset: int) -> None:
    """Copy all elements, `offset` rows further along the axis."""
    lanes = gcd(extents[-1], _LANES)
    with (
        builder.serial(0, prod(extents[:-1])) as row,
        builder.serial(0, extents[-1] // lanes) as part,
        builder.vectorized(0, lanes) as lane,
    ):
        place, left = [part * lanes + lane], row
        for extent in reversed(extents[:-1]):
            place.insert(0, left % extent)
            left = left // extent
        moved = [each + offset if at == axis else each for at, each in enumerate(place)]
        builder.buffer_store(target, source[tuple(place)], moved)


def _copy_to_places(source: Any, target: Any, places: Any, new: list[int], past: Sequence[int]) -> None:
    """Copy the tokens of each batch to rows from its place on; a place where they do not fit is moved."""
    batch, heads, rows, width = past
    tokens, lanes = new[1], gcd(width, _LANES)
    with (
        builder.serial(0, batch * tokens) as number,
        builder.serial(0, heads * width // lanes) as part,
        builder.vectorized(0, lanes) as lane,
    ):
        own, token, at = number // tokens, number % tokens, part * lanes + lane
        place = tirx.max(tirx.min(places[own], rows - tokens), 0)
        moved = [own, part * lanes // width, place + token, part * lanes % width + lane]
        builder.buffer_store(target, source[own, token, at], moved)


def described_caches(
    mod: tvm.IRModule, inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]
) -> Any:
    """The field `caches` of a manifest: names of inputs and outputs, and the axes of their rows."""
    hides = has_unused_rows(mod)
    return [
        {
            "input": inputs[each.input]["name"],
            "output": outputs[each.output]["name"],
            "axis": each.axis,
            **({"hides_unused": True} if hides else {}),
        }
        for each in caches_of(mod)
    ]
