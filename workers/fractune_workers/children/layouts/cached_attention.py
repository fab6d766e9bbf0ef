"""Attention over a cache that an exporter wrote as products and a softmax: one operator again.

The written-out form turns all keys of the cache round before the product, which is a copy of the cache. Attention over
keys of an encoder, which are an input, is one operator for a few queries. For more of them, products in blocks are
faster, and the turned keys are a small part.
"""

from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_workers.children.layouts.attention import Attention, attended
from fractune_workers.children.layouts.kernels.attention import MOST_ROWS
from fractune_workers.children.rewriting.caches import caches_of
from fractune_workers.children.rewriting.expressions import bound_call, numbers_of, operator_of, shape_of

_RANK = 4
_FLOAT = "float32"
_TURNED = [0, 1, 3, 2]
_SAME_NUMBERS = ("reshape", "expand_dims")


def with_cached_attention(mod: tvm.IRModule) -> tvm.IRModule:
    """The module whose caches have kernels already (`with_caches`), with attention over them as one operator."""
    caches = caches_of(mod)
    if not caches:
        return mod
    finder = _Finder(mod.clone(), [mod["main"].params[cache.input] for cache in caches])
    finder.builder_.update_func(mod.get_global_var("main"), finder.visit_expr(mod["main"]))
    tidy: tvm.IRModule = relax.transform.DeadCodeElimination()(finder.builder_.get())
    return tidy


def _sizes(queries: Any, keys: Any, values: Any, scale: float) -> Attention | None:
    """Of attention whose mask alone says what a query sees; None for operands that do not fit."""
    batch, heads, tokens, width = shape_of(queries)
    of_keys, of_values = shape_of(keys), shape_of(values)
    if (of_keys[0], of_keys[3]) != (batch, width) or of_keys[:3] != of_values[:3] or heads % of_keys[1]:
        return None
    return Attention(
        batch, tokens, heads, of_keys[1], of_keys[2], width, of_values[3], scale, is_causal=False, by_heads=True
    )


def _has_as_many(value: Any, rows: tuple[int, ...]) -> bool:
    """Whether the last two axes of a value have as many elements as these."""
    return prod(shape_of(value)[-2:]) == prod(rows)


@mutator
class _Finder(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, pasts: list[Any]) -> None:
        super().__init__(mod)
        self._pasts = pasts
        self._inputs = list(mod["main"].params)

    def visit_call_(self, op: Any) -> Any:
        call = super().visit_call_(op)
        made = self._attention(call) if operator_of(call) == "matmul" else None
        return call if made is None else made

    def _attention(self, call: Any) -> Any | None:
        """For softmax(queries * turned keys * factor + mask) * values; None for another product."""
        softmax, values = self._call(call.args[0], "nn.softmax"), self._cache(call.args[1])
        if softmax is None or values is None or int(softmax.attrs.axis) not in (-1, _RANK - 1):
            return None
        scores, mask = self._masked(softmax.args[0])
        scores, factor = self._scaled(scores)
        product = self._call(scores, "matmul")
        if product is None or str(call.args[0].ty.dtype) != _FLOAT:
            return None
        turned, more = self._scaled(product.args[1])
        turn = self._call(turned, "permute_dims")
        is_turned = turn is not None and turn.attrs.axes is not None and list(map(int, turn.attrs.axes)) == _TURNED
        keys = self._cache(turn.args[0]) if turn is not None and is_turned else None
        if keys is None or len(shape_of(product.args[0])) != _RANK:
            return None
        of = _sizes(product.args[0], keys, values, factor * more)
        if of is not None and of.group * of.tokens > MOST_ROWS and self._is_input(keys):
            return None
        bias = None if of is None else self._bias(mask, (of.batch, of.heads, of.tokens, of.keys))
        if of is None or (mask is not None and bias is None):
            return None
        return attended(self.builder_, of, [product.args[0], keys, values], bias=bias)

    def _call(self, expr: Any, name: str) -> Any | None:
        return bound_call(self.builder_, expr, name)

    def _masked(self, expr: Any) -> tuple[Any, Any]:
        """The scores, and what is added to them."""
        added = self._call(expr, "add")
        if added is None:
            return expr, None
        sides = tuple(added.args)
        own = next((at for at, each in enumerate(sides) if self._call(self._scaled(each)[0], "matmul") is not None), 0)
        return sides[own], sides[1 - own]

    def _scaled(self, expr: Any) -> tuple[Any, float]:
        """A value, and the number that it is multiplied by."""
        for name in ("multiply", "divide"):
            call = self._call(expr, name)
            if call is None:
                continue
            sides = [tuple(call.args), tuple(call.args)[::-1]][: 1 if name == "divide" else 2]
            for value, number in sides:
                numbers = numbers_of(self.builder_, number)
                if numbers is not None and numbers.size == 1 and numbers.item() != 0:
                    return value, numbers.item() if name == "multiply" else 1 / numbers.item()
        return expr, 1.0

    def _cache(self, expr: Any) -> Any | None:
        """The cache or the input that a value is; a cache perhaps with each of its heads several times. Else None."""
        wide, rows = expr, shape_of(expr)[2:] if len(shape_of(expr)) == _RANK else ()
        while True:
            value: Any = self.builder_.lookup_binding(expr) if isinstance(expr, relax.Var) else None
            name = operator_of(value)
            if name == "broadcast_to":
                before, after = shape_of(value.args[0]), shape_of(value)
                # The new axis is right behind that of the heads, so that each head is followed by its copies.
                if len(before) != _RANK + 1 or before[2] != 1 or before[:2] != after[:2] or before[3:] != after[3:]:
                    return None
            elif name == "call_tir":
                first = value.args[1].fields[0]
                is_cache = any(first.same_as(past) for past in self._pasts) and rows == shape_of(value)[2:]
                return expr if is_cache and (expr is wide or shape_of(wide)[0] == shape_of(value)[0]) else None
            elif self._is_input(expr):
                return expr if expr is wide else None
            elif name not in _SAME_NUMBERS or not _has_as_many(value.args[0], rows):
                return None
            expr = value.args[0]

    def _is_input(self, expr: Any) -> bool:
        return any(expr.same_as(each) for each in self._inputs)

    def _bias(self, mask: Any, shape: tuple[int, ...]) -> Any | None:
        """The mask with an axis for each of the scores', of one number or all."""
        if mask is None:
            return None
        own = (1,) * (_RANK - len(shape_of(mask))) + shape_of(mask)
        if str(mask.ty.dtype) != _FLOAT or any(dim not in (1, whole) for dim, whole in zip(own, shape, strict=True)):
            return None
        return mask if own == shape_of(mask) else self.builder_.emit(relax.op.reshape(mask, own))
