"""What a decoder gives for one token alone: a prompt needs the logits behind its last token, and no others.

`main` gets one more output: an output of all tokens, computed for one of them. From the last attention on, operators
compute each token by itself. So these operators are there once more, for that one token. The compiled model has this
output in an entry of its own (`children/compiling/cache_in_place.py`), and `main` has it no more.
"""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

from fractune_workers.children.layouts.four_bits import is_product, with_data
from fractune_workers.children.rewriting.concats import TELLS_TOKEN, caches_of, new_rows, outputs_of
from fractune_workers.children.rewriting.expressions import ELEMENTWISE, OPAQUE, has_fixed_shapes, operator_of, shape_of

LAST = "last_token"
"""the function with the output of one token in the place of that of all tokens"""
_LAST = "fractune.last_token"
"""Attribute of `main`: the number of the output that its last output is for one token"""
_SAME_ROWS = ELEMENTWISE | {"astype"}
_OF_LAST_AXIS = frozenset({"argmax", "nn.layer_norm", "nn.rms_norm", "nn.softmax"})
_PRODUCT = "matmul"


def with_last_token(mod: tvm.IRModule) -> tvm.IRModule:
    """The module whose `main` has this output. Unchanged without caches, for one token, and where no product leads to
    an output by tokens.
    """
    if not caches_of(mod) or new_rows(mod) < 2:
        return mod
    block = mod["main"].body.blocks[-1]
    if not isinstance(block, relax.DataflowBlock):
        return mod
    values = {binding.var: binding.value for binding in block.bindings}
    if not isinstance(values.get(mod["main"].body.body), relax.Tuple):
        return mod
    return _Copy(mod, values).module()


def gives_last_token(mod: tvm.IRModule) -> bool:
    """Whether the last output of `main` is that of one token."""
    return _LAST in (mod["main"].attrs or {})


def with_function_of_last_token(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with its function `LAST`, and without that output of `main`."""
    if not gives_last_token(mod):
        return mod
    main, made = mod["main"], mod.clone()
    *outputs, last = outputs_of(main)
    at = int(main.attrs[_LAST])
    made["main"] = _returning(main.without_attr(_LAST), outputs)
    replaced = _returning(main.without_attr(_LAST), [*outputs[:at], last, *outputs[at + 1 :]])
    made[LAST] = relax.utils.copy_with_new_vars(replaced).with_attr("global_symbol", LAST)
    return relax.transform.DeadCodeElimination(["main", LAST])(made)


def without_function_of_last_token(mod: tvm.IRModule) -> tvm.IRModule:
    others = {var: each for var, each in mod.functions.items() if var.name_hint != LAST}
    return tvm.IRModule(others, attrs=mod.attrs)


def _returning(function: Any, outputs: Sequence[Any], new: Sequence[Any] = ()) -> Any:
    """The function with other outputs, and with `new` bindings in its last block."""
    *blocks, block = function.body.blocks
    result = relax.Var("outputs", relax.TupleType([each.ty for each in outputs]))
    kept = [each for each in block.bindings if not each.var.same_as(function.body.body)]
    ended = relax.DataflowBlock([*kept, *new, relax.VarBinding(result, relax.Tuple(list(outputs)))])
    body = relax.SeqExpr([*blocks, ended], result)
    return relax.Function(function.params, body, result.ty, function.is_pure, function.attrs)


class _Copy:
    """The operators that lead to an output, for one token."""

    def __init__(self, mod: tvm.IRModule, values: dict[Any, Any]) -> None:
        self._mod, self._main, self._values = mod, mod["main"], values
        self._tokens, self._batch = new_rows(mod), 0
        self._builder = relax.BlockBuilder(mod.clone())
        self._users: dict[Any, set[Any]] = {}
        for var, value in values.items():
            for each in relax.analysis.free_vars(value):
                self._users.setdefault(each, set()).add(var)
        self._own: set[Any] = set()
        """the variables that are computed for one token too"""
        self._made: dict[Any, Any] = {}
        """the values of one token by the variables of all"""
        self._new: list[Any] = []

    def module(self) -> tvm.IRModule:
        outputs, written = outputs_of(self._main), {cache.output for cache in caches_of(self._mod)}
        for at, output in enumerate(outputs):
            if at not in written and self._leads_to(output):
                break
        else:
            return self._mod
        for var in [each for each in self._values if each in self._own]:
            self._made[var] = self._bound(self._of_one(var, self._values[var]))
        changed = _returning(self._main, [*outputs, self._made[output]], self._new)
        self._builder.update_func(self._mod.get_global_var("main"), changed.with_attr(_LAST, at))
        return relax.transform.Normalize()(self._builder.get())

    def _leads_to(self, output: Any) -> bool:
        """Whether a product leads to the output. Then the operators are known that nothing else reads."""
        shape = shape_of(output) if output in self._values and has_fixed_shapes(output) else ()
        if shape[1:2] != (self._tokens,):
            return False
        self._batch, self._own = shape[0], set()
        for var, value in reversed(self._values.items()):
            if (var.same_as(output) or self._users.get(var, {None}) <= self._own) and self._places(var, value):
                self._own.add(var)
        return any(operator_of(self._values[each]) in (_PRODUCT, "call_tir") for each in self._own)

    def _form(self, value: Any) -> int:
        """1 for tokens of all batches in one axis, 2 for (batch, tokens); 0 for another value."""
        if not isinstance(value.ty, relax.TensorType) or not isinstance(value.ty.shape, relax.ShapeExpr):
            return 0
        shape = shape_of(value)
        if shape[:2] == (self._batch, self._tokens):
            return 2
        return int(shape[:1] == (self._batch * self._tokens,))

    def _places(self, var: Any, value: Any) -> list[int]:
        """The operands by tokens of an operator that computes each token by itself; none of any other."""
        name, form = operator_of(value), self._form(var)
        if not form or not name:
            return []
        if name == "call_tir":
            operands = list(getattr(value.args[1], "fields", ()))
            return [0] if form == 1 and is_product(self._mod[value.args[0]], operands) else []
        if name in _SAME_ROWS:
            found = [self._operand(each, len(shape_of(var)), form) for each in value.args]
            return [] if None in found else [at for at, each in enumerate(found) if each]
        own = self._form(value.args[0])
        if name == "reshape":
            return [0] if own else []
        rank = len(shape_of(value.args[0]))
        is_by_rows = own == form and rank > own
        if name == _PRODUCT:
            return [0] if is_by_rows and len(shape_of(value.args[1])) == 2 else []
        axes = [value.attrs.axis] if hasattr(value.attrs, "axis") else getattr(value.attrs, "axes", None) or [None]
        is_last = all(axis is not None and int(axis) in (-1, rank - 1) for axis in axes)
        return [0] if name in _OF_LAST_AXIS and is_by_rows and is_last else []

    def _operand(self, value: Any, rank: int, form: int) -> bool | None:
        """Whether an operand is by tokens as the result is; None where it is in another way."""
        if not isinstance(value.ty, relax.TensorType):
            return False
        shape = shape_of(value)
        if len(shape) == rank and self._form(value) == form:
            return True
        axis = len(shape) - rank + form - 1
        return None if axis >= 0 and shape[axis] != 1 else False

    def _of_one(self, var: Any, value: Any) -> Any:
        places = self._places(var, value)
        if operator_of(value) == "call_tir":
            operands = list(value.args[1].fields)
            return with_data(self._builder, self._mod[value.args[0]], operands, self._one(operands[0]))
        operands = [self._one(each) if at in places else each for at, each in enumerate(value.args)]
        if operator_of(value) == "reshape":
            form = self._form(var)
            rows = [self._batch] if form == 1 else [self._batch, 1]
            return relax.op.reshape(operands[0], [*rows, *shape_of(var)[form:]])
        return relax.Call(value.op, operands, value.attrs, value.ty_args)

    def _one(self, value: Any) -> Any:
        """A value of the one token: a copied one, or picked from those of all tokens."""
        if value not in self._made:
            form = self._form(value)

            def picked(data: te.Tensor, token: te.Tensor) -> te.Tensor:
                def element(batch: Any, *at: Any) -> Any:
                    place = tirx.max(tirx.min(token(0), self._tokens - 1), 0)
                    return data(batch * self._tokens + place, *at) if form == 1 else data(batch, place, *at[1:])

                rows = [self._batch] if form == 1 else [self._batch, 1]
                return te.compute((*rows, *shape_of(value)[form:]), element, name="picked")

            hint: dict[str, Any] = {"primfunc_name_hint": "pick", "primfunc_attrs": OPAQUE}
            self._made[value] = self._bound(self._builder.call_te(picked, value, self._token(), **hint))
        return self._made[value]

    def _token(self) -> Any:
        """The number of the token: the last one, where the caller of the compiled code does not write another."""
        if None not in self._made:

            def last(_other: te.Tensor) -> te.Tensor:
                return te.compute((1,), lambda *_at: tirx.const(self._tokens - 1, "int64"), name="token")

            hint: dict[str, Any] = {"primfunc_name_hint": "token", "primfunc_attrs": TELLS_TOKEN}
            self._made[None] = self._bound(self._builder.call_te(last, self._main.params[0], **hint))
        return self._made[None]

    def _bound(self, value: Any) -> Any:
        value = self._builder.normalize(value)
        var = relax.DataflowVar(f"token{len(self._new)}", value.ty)
        self._new.append(relax.VarBinding(var, value))
        return var
