"""ONNX's own Attention over a cache as one kernel: of float32, with a past or with a cache that TensorScatter writes.

Other forms are decomposed into the nodes by which ONNX defines the operator. Without a cache their products can be
tuned. An operator of our own stands for the number of rows of a decoder's past that are not in use. It is 0 in the
model of the file, and the entry for caches takes it from its caller (`children/compiling/cache_in_place.py`).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto
from onnx.helper import make_tensor_type_proto
from tvm import relax, te, tirx

from fractune_workers.children.importing.operators.group_query import by_batch
from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, dtype_of, shape_of
from fractune_workers.children.layouts.attention import Attention, attended
from fractune_workers.children.rewriting.concats import COUNTS_UNUSED

DOMAIN, UNUSED_ROWS = "fractune.caches", "UnusedRows"
"""The operator has an operand, so that no pass takes it for a constant, and reads nothing of it."""


def _unused_rows(node: OnnxNode) -> Any:
    def zero(_other: te.Tensor) -> te.Tensor:
        return te.compute((1,), lambda *_at: tirx.const(0, "int64"), name="unused_rows")

    hint: dict[str, Any] = {"primfunc_name_hint": "unused_rows", "primfunc_attrs": COUNTS_UNUSED}
    return node.emit(node.builder.call_te(zero, node.input(0), **hint))


def inferred(
    node: NodeProto, _types: Mapping[str, TypeProto], _constants: Mapping[str, TensorProto]
) -> dict[str, TypeProto]:
    """One number."""
    return {node.output[0]: make_tensor_type_proto(TensorProto.INT64, [1])}


UNUSED: Mapping[str, Converter] = {f"{DOMAIN}.{UNUSED_ROWS}": _unused_rows}


_MASK, _PAST, _LENGTHS = 3, 4, 6
_SCORES = 3
"""the output of scores"""
_RANK = 4
_KNOWN = frozenset({"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap"})
_INTEGER = "int32"


def is_whole(node: NodeProto, types: Mapping[str, TypeProto | None]) -> bool:
    """Whether there is one kernel for the node. `types`: of its inputs, by name."""
    kinds = {at: getattr(types.get(name), "tensor_type", None) for at, name in enumerate(node.input) if name}
    if any(kind is None or not all(dim.dim_value > 0 for dim in kind.shape.dim) for kind in kinds.values()):
        return False
    is_cached = _PAST in kinds or _LENGTHS in kinds
    if not is_cached or not {each.name for each in node.attribute} <= _KNOWN or any(node.output[_SCORES:]):
        return False
    numbers = [getattr(kinds.get(at), "elem_type", 0) for at in range(_MASK + 1)]
    is_mask = numbers[_MASK] in (0, TensorProto.FLOAT, TensorProto.BOOL)
    shapes = {at: [dim.dim_value for dim in kind.shape.dim] for at, kind in kinds.items() if kind is not None}
    if numbers[:_MASK] != [TensorProto.FLOAT] * _MASK or not is_mask or len(shapes[1]) < _RANK - 1:
        return False
    keys = shapes[1][-2] + (shapes[_PAST][-2] if len(shapes.get(_PAST, ())) == _RANK else 0)
    mask = shapes.get(_MASK, [keys])
    return len(mask) <= _RANK and mask[-1:] == [keys]


def _attention(node: OnnxNode) -> list[relax.Expr]:
    query, keys, values = (node.input(at) for at in range(3))
    by_heads = len(shape_of(query)) == _RANK
    counts = [int(node.attributes.get(name, 0)) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    parts = [_by_heads(node, each, count) for each, count in zip((keys, values), counts[1:], strict=True)]
    if not by_heads:
        query = _with_heads(node, query, counts[0])
    pasts = [node.optional(_PAST + at) for at in range(2)]
    if all(each is not None for each in pasts):
        parts = [node.emit(relax.op.concat([past, new], axis=2)) for past, new in zip(pasts, parts, strict=True)]
    batch, tokens = (shape_of(query)[at] for at in (0, 2 if by_heads else 1))
    heads, width = shape_of(query)[1 if by_heads else 2], shape_of(query)[3]
    (_, key_heads, rows, _), value_width = shape_of(parts[0]), shape_of(parts[1])[3]
    if heads % key_heads or shape_of(parts[0]) != [batch, key_heads, rows, width] or shape_of(parts[1])[2] != rows:
        raise node.refused(
            f"queries of shape {shape_of(query)} do not fit keys of {shape_of(parts[0])} and values of "
            f"{shape_of(parts[1])}; export it again"
        )
    of = Attention(
        batch,
        tokens,
        heads,
        key_heads,
        rows,
        width,
        value_width,
        float(node.attributes.get("scale", 1 / math.sqrt(width))),
        float(node.attributes.get("softcap", 0.0)),
        is_causal=bool(node.attributes.get("is_causal", 0)),
        by_heads=by_heads,
        zero_unseen=True,
    )
    before = _before(node, of, has_past=pasts[0] is not None)
    made = node.emit(attended(node.builder, of, [query, *parts], before, _bias(node, of)))
    return [made if by_heads else relax.op.reshape(made, [batch, tokens, heads * value_width]), *parts]


def _with_heads(node: OnnxNode, value: relax.Expr, heads: int) -> relax.Expr:
    """(batch, tokens, heads * width) with an axis of heads."""
    batch, tokens, numbers = shape_of(value)
    if heads < 1 or numbers % heads:
        raise node.refused(f"{numbers} numbers are not of {heads} heads; export it again")
    return node.emit(relax.op.reshape(value, [batch, tokens, heads, numbers // heads]))


def _by_heads(node: OnnxNode, value: relax.Expr, heads: int) -> relax.Expr:
    """(batch, heads, tokens, width)"""
    if len(shape_of(value)) == _RANK:
        return value
    return node.emit(relax.op.permute_dims(_with_heads(node, value, heads), [0, 2, 1, 3]))


def _before(node: OnnxNode, of: Attention, *, has_past: bool) -> relax.Expr | None:
    """The keys before those of the queries, by batch; None where the queries are the last of the keys. Without a past,
    a causal query sees as many keys as there are queries up to it.
    """
    lengths = by_batch(node, _LENGTHS, of.batch)
    if lengths is None:
        is_first = of.is_causal and not has_past and of.keys != of.tokens
        return relax.const(np.zeros(of.batch, _INTEGER)) if is_first else None

    def before(lengths: te.Tensor) -> te.Tensor:
        return te.compute((of.batch,), lambda at: lengths(at).astype(_INTEGER) - of.tokens, name="before")

    return node.emit(node.builder.call_te(before, lengths, primfunc_name_hint="before"))


def _bias(node: OnnxNode, of: Attention) -> relax.Expr | None:
    """What is added to the scores, with four axes, each of one number or all."""
    mask = node.optional(_MASK)
    if mask is None:
        return None
    if dtype_of(mask) == "bool":
        nothing, hidden = (relax.const(np.float32(each)) for each in (0, -np.inf))
        mask = node.emit(relax.op.where(mask, nothing, hidden))
    shape = [1] * (_RANK - len(shape_of(mask))) + shape_of(mask)
    whole = [of.batch, of.heads, of.tokens, of.keys]
    if any(dim not in (1, each) for dim, each in zip(shape, whole, strict=True)):
        raise node.refused(f"a mask of shape {shape_of(mask)} for scores of {whole}; export it again")
    return node.emit(relax.op.reshape(mask, shape))


WHOLE_ATTENTION: Mapping[str, Converter] = {"Attention": _attention}
"""by ONNX's names"""
