"""Attention over a cache as one operator: scores, softmax and the sum of the values.

The importer emits a plain kernel. Layout planning puts a kernel of vectors in its place, which reads the keys in use
only. Data of other types than float32, and GPUs, keep the plain kernel.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx

from fractune_workers.children.layouts.kernels.attention import LOWEST, UNSEEN, Attention, attention_kernel
from fractune_workers.children.layouts.planner import Planner
from fractune_workers.children.rewriting.expressions import shape_of
from fractune_workers.children.tvm_api.target import VectorUnit

__all__ = ["Attention", "attended", "in_vectors"]

_WIDE = "float32"
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
    if not text or len(text) > _LONGEST_FORM or str(call.ty.dtype) != _WIDE:
        return None
    try:
        sizes, has_past, bias = json.loads(text)
        of = Attention(**sizes)
        is_plain = bool(tvm_ffi.structural_equal(function, _plain_kernel(of, _WIDE, has_past, bias)))
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
        query = queries(*of.query_place(b, s, n, d)).astype(_WIDE)
        return te.sum(query * keys(b, n // of.group, key, d).astype(_WIDE), axis=d)

    products = te.compute((*shape, of.keys), product, name="products")

    def score(b: Any, n: Any, s: Any, key: Any) -> Any:
        value = products(b, n, s, key) * tirx.const(of.scale, _WIDE)
        if of.softcap:
            value = te.tanh(value / tirx.const(of.softcap, _WIDE)) * tirx.const(of.softcap, _WIDE)
        if bias is not None:
            place = zip((b, n, s, key), bias.shape, strict=True)
            value = value + bias(*(each if int(size) > 1 else 0 for each, size in place)).astype(_WIDE)
        before = past(b) if past is not None else tirx.const(of.keys - of.tokens, "int32")
        begin, end = of.seen(before, s.astype("int32"))
        at = key.astype("int32")
        return tirx.if_then_else(tirx.And(at >= begin, at < end), value, tirx.const(UNSEEN, _WIDE))

    scores = te.compute((*shape, of.keys), score, name="scores")
    largest = _largest(of, scores, sink)
    weights = te.compute((*shape, of.keys), lambda *at: te.exp(scores(*at) - largest(*at[:-1])), name="weights")
    i, k = te.reduce_axis((0, of.keys), "i"), te.reduce_axis((0, of.keys), "k")
    totals = te.compute(shape, lambda *at: te.sum(weights(*at, i), axis=i), name="totals")

    def weighted(b: Any, n: Any, s: Any, at: Any) -> Any:
        return te.sum(weights(b, n, s, k) * values(b, n // of.group, k, at).astype(_WIDE), axis=k)

    sums = te.compute((*shape, of.value_width), weighted, name="sums")

    def quotient(*at: Any) -> Any:
        b, n, s = (at[0], at[1], at[2]) if of.by_heads else (at[0], at[2], at[1])
        total = totals(b, n, s)
        if sink is not None:
            total = total + te.exp(sink(n).astype(_WIDE) - largest(b, n, s))
        made, nothing = sums(b, n, s, at[3]) / total, tirx.const(0.0, _WIDE)
        return (tirx.Select(total == nothing, nothing, made) if of.zero_unseen else made).astype(dtype)

    return te.compute(of.query_shape(of.value_width), quotient, name="attention")


def _largest(of: Attention, scores: te.Tensor, sink: te.Tensor | None) -> te.Tensor:
    """Of the scores of each query."""
    j = te.reduce_axis((0, of.keys), "j")
    made = te.compute(scores.shape[:-1], lambda *at: te.max(scores(*at, j), axis=j), name="largest")
    if sink is None and not of.zero_unseen:
        return made

    def larger(batch: Any, head: Any, token: Any) -> Any:
        least = tirx.const(LOWEST, _WIDE) if sink is None else sink(head).astype(_WIDE)
        return te.max(made(batch, head, token), least)

    return te.compute(scores.shape[:-1], larger, name="larger")
