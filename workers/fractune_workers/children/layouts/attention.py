"""Attention over a cache as one operator: scores, softmax and the sum of the values.

The importer emits a plain kernel. Layout planning puts a kernel of vectors in its place, which reads the keys in use
only. Data of other types than float32, and GPUs, keep the plain kernel.

An exporter may write the operator as products and a softmax. This form turns all keys of the cache round before the
product, which is a copy of the cache, so it becomes one operator again. Attention over keys of an encoder, which are an
input, is one operator for a few queries. For more of them, products in blocks are faster, and the turned keys are a
small part.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_workers.children.layouts.kernels.attention import LOWEST, MOST_ROWS, UNSEEN, Attention, attention_kernel
from fractune_workers.children.layouts.planner import Planner
from fractune_workers.children.rewriting.concats import caches_of
from fractune_workers.children.rewriting.expressions import bound_call, numbers_of, operator_of, shape_of
from fractune_workers.children.tvm_api.target import VectorUnit

__all__ = ["Attention", "attended", "in_vectors"]

_FLOAT = "float32"
_NAME = "attention"
_FORM = "fractune.attention"
"""Attribute of the plain kernel: JSON of its `Attention`, whether it has a past, and the shape of its bias"""
_LONGEST_FORM = 1000


def attended(
    builder: relax.BlockBuilder,
    of: Attention,
    operands: Sequence[relax.Expr],
    past: relax.Expr | None = None,
    bias: relax.Expr | None = None,
    sink: relax.Expr | None = None,
) -> relax.Expr:
    """The call of attention for queries, keys and values. `past` (batch): keys before those of the queries, else the
    queries are the last of the keys. `bias` (4 axes, each 1 or whole) is added to the scores. `sink`: (heads).
    """
    more = [each for each in (past, bias, sink) if each is not None]
    dtype = str(operands[0].ty.dtype)
    function = _plain_kernel(of, dtype, past is not None, () if bias is None else shape_of(bias))
    made = relax.TensorType(of.query_shape(of.value_width), dtype)
    return relax.call_tir(builder.add_func(function, _NAME), relax.Tuple([*operands, *more]), made)


def _plain_kernel(of: Attention, dtype: str, has_past: bool, bias: Sequence[int]) -> tirx.PrimFunc:  # noqa: FBT001
    shapes = [of.query_shape(of.width), of.key_shape(of.width), of.key_shape(of.value_width)]
    tensors = [te.placeholder(shape, dtype, f"x{at}") for at, shape in enumerate(shapes)]
    past = te.placeholder((of.batch,), "int32", "past") if has_past else None
    added = te.placeholder(tuple(bias), dtype, "bias") if bias else None
    sink = te.placeholder((of.heads,), dtype, "sink") if of.has_sink else None
    result = _attention(of, dtype, tensors, past, added, sink)
    arguments = [*tensors, *(each for each in (past, added, sink) if each is not None), result]
    function = te.create_prim_func(arguments).without_attr("global_symbol")
    return function.with_attr(_FORM, json.dumps([asdict(of), has_past, list(map(int, bias))]))


def in_vectors(planner: Planner, call: Any, unit: VectorUnit) -> tuple[Any, None] | None:
    """The rule for a call of the plain kernel; None for another call. A module may come from a file, so its function is
    compared and not its attribute.
    """
    function = planner.builder_.get()[call.args[0]]
    text = str((function.attrs or {}).get(_FORM, ""))
    if not text or len(text) > _LONGEST_FORM or str(call.ty.dtype) != _FLOAT:
        return None
    try:
        sizes, has_past, bias = json.loads(text)
        of = Attention(**sizes)
        is_plain = bool(tvm_ffi.structural_equal(function, _plain_kernel(of, _FLOAT, has_past, bias)))
    except (ValueError, TypeError, RecursionError, ZeroDivisionError):
        return None
    if not is_plain:
        return None
    kernel = planner.builder_.add_func(attention_kernel(of, unit, bias, has_past=has_past), _NAME)
    return relax.call_tir(kernel, call.args[1], call.ty), None


def _attention(of: Attention, dtype: str, tensors: Sequence[te.Tensor], past: Any, bias: Any, sink: Any) -> te.Tensor:
    queries, keys, values = tensors
    d = te.reduce_axis((0, of.width), "d")
    shape = (of.batch, of.heads, of.tokens)

    def product(b: Any, n: Any, s: Any, key: Any) -> Any:
        query = queries(*of.query_place(b, s, n, d)).astype(_FLOAT)
        return te.sum(query * keys(b, n // of.group, key, d).astype(_FLOAT), axis=d)

    products = te.compute((*shape, of.keys), product, name="products")

    def score(b: Any, n: Any, s: Any, key: Any) -> Any:
        value = products(b, n, s, key) * tirx.const(of.scale, _FLOAT)
        if of.softcap:
            value = te.tanh(value / tirx.const(of.softcap, _FLOAT)) * tirx.const(of.softcap, _FLOAT)
        if bias is not None:
            place = zip((b, n, s, key), bias.shape, strict=True)
            value = value + bias(*(each if int(size) > 1 else 0 for each, size in place)).astype(_FLOAT)
        before = past(b) if past is not None else tirx.const(of.keys - of.tokens, "int32")
        begin, end = of.seen(before, s.astype("int32"))
        at = key.astype("int32")
        return tirx.if_then_else(tirx.And(at >= begin, at < end), value, tirx.const(UNSEEN, _FLOAT))

    scores = te.compute((*shape, of.keys), score, name="scores")
    largest = _largest(of, scores, sink)
    weights = te.compute((*shape, of.keys), lambda *at: te.exp(scores(*at) - largest(*at[:-1])), name="weights")
    i, k = te.reduce_axis((0, of.keys), "i"), te.reduce_axis((0, of.keys), "k")
    totals = te.compute(shape, lambda *at: te.sum(weights(*at, i), axis=i), name="totals")

    def weighted(b: Any, n: Any, s: Any, at: Any) -> Any:
        return te.sum(weights(b, n, s, k) * values(b, n // of.group, k, at).astype(_FLOAT), axis=k)

    sums = te.compute((*shape, of.value_width), weighted, name="sums")

    def quotient(*at: Any) -> Any:
        b, n, s = (at[0], at[1], at[2]) if of.by_heads else (at[0], at[2], at[1])
        total = totals(b, n, s)
        if sink is not None:
            total = total + te.exp(sink(n).astype(_FLOAT) - largest(b, n, s))
        made, nothing = sums(b, n, s, at[3]) / total, tirx.const(0.0, _FLOAT)
        return (tirx.Select(total == nothing, nothing, made) if of.zero_unseen else made).astype(dtype)

    return te.compute(of.query_shape(of.value_width), quotient, name="attention")


def _largest(of: Attention, scores: te.Tensor, sink: te.Tensor | None) -> te.Tensor:
    """Of the scores of each query."""
    j = te.reduce_axis((0, of.keys), "j")
    made = te.compute(scores.shape[:-1], lambda *at: te.max(scores(*at, j), axis=j), name="largest")
    if sink is None and not of.zero_unseen:
        return made

    def larger(batch: Any, head: Any, token: Any) -> Any:
        least = tirx.const(LOWEST, _FLOAT) if sink is None else sink(head).astype(_FLOAT)
        return te.max(made(batch, head, token), least)

    return te.compute(scores.shape[:-1], larger, name="larger")


_RANK = 4
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
