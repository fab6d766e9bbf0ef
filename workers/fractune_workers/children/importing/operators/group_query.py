"""GroupQueryAttention of ONNX Runtime: attention over a cache that may be larger than the tokens in it. Also ONNX's own
TensorScatter, which writes new rows into such a cache, and rotary embeddings.

Rows of the cache from `seqlens_k` + 1 on are not in use. New keys and values are written behind the rows before, and
queries see the rows up to their own. A rotary embedding turns pairs of numbers of each head by an angle that grows
with the position. ONNX's operator and that of ONNX Runtime have the same numbers, in another order of inputs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto, numpy_helper
from onnx.helper import make_tensor_type_proto
from tvm import relax, te, tirx

from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, as_type, dtype_of, shape_of
from fractune_workers.children.layouts.attention import Attention, attended
from fractune_workers.children.rewriting.concats import APPENDS

_WIDE = "float32"
_BY_HEADS = 4
"""Rank of data with an axis of heads"""
_BY_ROWS = 3
"""Rank of tables that have a row for each token, and no positions"""


@dataclass(frozen=True)
class Turning:
    """How the numbers of heads are turned."""

    width: int
    """numbers of a head"""
    turned: int
    """of these, from the first on"""
    interleaved: bool
    """whether the two numbers of a pair are neighbours; else they are half of the turned numbers apart"""
    by_heads: bool
    """whether the data are (batch, heads, tokens, width); else (batch, tokens, heads * width)"""

    def turn(self, data: te.Tensor, cos: te.Tensor, sin: te.Tensor, positions: te.Tensor | None = None) -> te.Tensor:
        """The turned numbers of data with four axes, with two axes for them: pairs, and their two numbers.

        Tables are (positions, turned / 2), or (batch, tokens, turned / 2) without `positions`. Positions are those of
        all tokens, or of the first token of each batch or of all. Outside of the tables the nearest row counts.
        """
        half = self.turned // 2

        def element(*at: Any) -> Any:
            batch, token = at[0], at[2 if self.by_heads else 1]
            which, pair = at[3:] if not self.interleaved else at[:2:-1]
            row = self._row(cos, positions, batch, token)
            cosine, sine = (table(*row, pair).astype(_WIDE) for table in (cos, sin))
            own, other = (data(*at[:3], self._place(each, pair)).astype(_WIDE) for each in (which, 1 - which))
            # By arithmetic: of a choice between two loads, TVM computes both, and one is out of bounds.
            sign = (2 * which - 1).astype(_WIDE)
            return (own * cosine + other * (sine * sign)).astype(data.dtype)

        pairs = (half, 2) if self.interleaved else (2, half)
        return te.compute((*data.shape[:3], *pairs), element, name="rotary")

    def _place(self, which: Any, pair: Any) -> Any:
        """Of a number in its head."""
        return 2 * pair + which if self.interleaved else which * (self.turned // 2) + pair

    def _row(self, table: te.Tensor, positions: te.Tensor | None, batch: Any, token: Any) -> tuple[Any, ...]:
        if positions is None:
            return (batch, token)
        dtype = str(positions.dtype)
        if len(positions.shape) == 1:
            number = positions(batch if int(positions.shape[0]) > 1 else 0) + token.astype(dtype)
        else:
            number = positions(batch, token)
        last = tirx.const(int(table.shape[0]) - 1, dtype)
        return (tirx.max(tirx.min(number, last), tirx.const(0, dtype)),)


def turned(node: OnnxNode, turning: Turning, data: relax.Expr, *tables: relax.Expr | None) -> relax.Expr:
    """The data turned by tables of cosines and sines, and perhaps positions. Raises BadModel for those that do not
    fit.
    """
    cos, sin, *positions = [each for each in tables if each is not None]
    half, shapes = turning.turned // 2, [shape_of(cos), shape_of(sin)]
    if turning.turned % 2 or not 0 < turning.turned <= turning.width:
        raise node.refused(f"{turning.turned} of {turning.width} numbers of a head cannot be turned; export it again")
    batch, tokens = shape_of(data)[0], shape_of(data)[2 if turning.by_heads else 1]
    fits = [[batch, tokens, half]] if not positions else []
    if (shapes[0] != shapes[1]) or (not positions and shapes[0] not in fits) or shapes[0][-1] != half:
        raise node.refused(f"tables of shapes {shapes[0]} and {shapes[1]} for {half} angles; export it again")
    if positions and (len(shapes[0]) != 2 or shape_of(positions[0]) not in ([1], [batch], [batch, tokens])):
        raise node.refused(f"positions of shape {shape_of(positions[0])} for {[batch, tokens]} tokens; export it again")
    return _of_heads(node, turning, data, [cos, sin, *positions])


def _of_heads(node: OnnxNode, turning: Turning, data: relax.Expr, tables: list[relax.Expr]) -> relax.Expr:
    """The data turned, with the numbers that are not turned behind those that are."""
    shape, width = shape_of(data), turning.width
    heads = shape if turning.by_heads else [*shape[:2], shape[2] // width, width]
    deep = node.emit(relax.op.reshape(data, heads))
    made = node.emit(node.builder.call_te(turning.turn, deep, *tables, primfunc_name_hint="rotary"))
    if turning.turned < width:
        flat = node.emit(relax.op.reshape(made, [*heads[:3], turning.turned]))
        rest = node.emit(relax.op.strided_slice(deep, [3], [turning.turned], [width]))
        made = node.emit(relax.op.concat([flat, rest], axis=3))
    return node.emit(relax.op.reshape(made, shape))


def _embedding(positions: int, cos: int, sin: int, node: OnnxNode) -> relax.Expr:
    """`positions`, `cos`, `sin`: which inputs they are."""
    data, shape = node.input(0), shape_of(node.input(0))
    heads, part = (int(node.attributes.get(name, 0)) for name in ("num_heads", "rotary_embedding_dim"))
    if node.attributes.get("is_packed_batching", 0):
        raise node.refused("is_packed_batching=1 is not supported; export it with a batch of equal lengths")
    by_heads = len(shape) == _BY_HEADS
    if len(shape) not in (_BY_ROWS, _BY_HEADS) or (part and not by_heads and heads < 1):
        raise node.refused(
            f"data of shape {shape} with num_heads={heads}; export it with (batch, heads, tokens, width)"
        )
    if by_heads:
        width = shape[-1]
    elif heads > 0:
        width = shape[-1] // heads
    else:
        width = 2 * shape_of(node.input(cos))[-1]
    if width < 1 or (not by_heads and shape[-1] % width):
        raise node.refused(f"{shape[-1]} numbers are not heads of {width}; export it again")
    turning = Turning(width, part or width, bool(node.attributes.get("interleaved", 0)), by_heads)
    return turned(node, turning, data, node.input(cos), node.input(sin), node.optional(positions))


def inferred_turned(
    node: NodeProto, types: Mapping[str, TypeProto], _constants: Mapping[str, TensorProto]
) -> dict[str, TypeProto]:
    """The type of the result, which is that of the data. `types`: of the inputs, by name."""
    return {node.output[0]: types[node.input[0]]} if node.input and node.input[0] in types else {}


ROTARY: Mapping[str, Converter] = {
    "RotaryEmbedding": partial(_embedding, 3, 1, 2),
    "com.microsoft.RotaryEmbedding": partial(_embedding, 1, 2, 3),
}
"""by ONNX's names"""


_PAST_KEY, _PAST_VALUE, _LENGTHS, _TOTAL, _COS, _SIN, _POSITIONS, _BIAS, _SINK = range(3, 12)
_NORMS = (14, 15)
_ROWS = 3
"""Rank of queries, keys and values"""
_HEADS_FIRST = 4
"""Rank of a cache"""
_INTEGER = "int32"


@dataclass(frozen=True)
class _Sizes:
    batch: int
    tokens: int
    heads: int
    key_heads: int
    width: int
    past: int
    """rows of the cache before; 0: none"""
    total: int
    """tokens before and in this call; 0: known only when the model runs"""

    @property
    def rows(self) -> int:
        """of the cache behind"""
        return max(self.past, self.total)


def _group_query(node: OnnxNode) -> list[relax.Expr]:
    _refuse_others(node)
    parts, sizes = _parts(node)
    start = _start(node, sizes)
    query, key, value = parts
    if node.attributes.get("do_rotary", 0):
        query, key = (_turned(node, sizes, each, start) for each in (query, key))
    presents = [
        _appended(node, sizes, node.optional(at), new, start) for at, new in ((_PAST_KEY, key), (_PAST_VALUE, value))
    ]
    window = int(node.attributes.get("local_window_size", -1))
    sink = node.optional(_SINK)
    if sink is None and int(node.attributes.get("smooth_softmax", 0)) == 1:
        sink = relax.const(np.zeros(sizes.heads, dtype_of(query)))
    of = Attention(
        sizes.batch,
        sizes.tokens,
        sizes.heads,
        sizes.key_heads,
        sizes.rows,
        sizes.width,
        sizes.width,
        float(node.attributes.get("scale", 0.0)) or 1 / math.sqrt(sizes.width),
        float(node.attributes.get("softcap", 0.0)),
        window if window > 0 else -1,
        bool(node.attributes.get("causal", 1)),
        sink is not None,
    )
    heads = node.emit(relax.op.reshape(query, of.query_shape(of.width)))
    seen = node.emit(attended(node.builder, of, [heads, *presents], start, _bias(node, sizes), sink))
    return [relax.op.reshape(seen, [sizes.batch, sizes.tokens, sizes.heads * sizes.width]), *presents]


def _refuse_others(node: OnnxNode) -> None:
    """Raises BadModel for what no kernel computes."""
    if len(node.proto.output) > 3 and node.proto.output[3]:
        raise node.refused(f"its output '{node.proto.output[3]}' (products of queries and keys) is not computed")
    if int(node.attributes.get("sliding_window_cache", 0)):
        raise node.refused("sliding_window_cache=1 is not supported; export it with a cache of all rows")
    if any(node.optional(at) is not None for at in _NORMS):
        raise node.refused("it normalises queries and keys, which ONNX Runtime does not on a CPU; export it without")
    past = node.optional(_PAST_KEY)
    if past is not None and dtype_of(past) != dtype_of(node.input(0)):
        raise node.refused(f"its cache of {dtype_of(past)} is quantized; export it with {dtype_of(node.input(0))}")


def _parts(node: OnnxNode) -> tuple[list[relax.Expr], _Sizes]:
    """Queries, keys and values (batch, tokens, heads * width). Raises BadModel for sizes that do not fit."""
    query, shape = node.input(0), shape_of(node.input(0))
    heads, key_heads = (int(node.attributes.get(name, 0)) for name in ("num_heads", "kv_num_heads"))
    is_packed = node.optional(1) is None
    count = heads + 2 * key_heads if is_packed else heads
    if len(shape) != _ROWS or heads < 1 or key_heads < 1 or heads % key_heads or shape[2] % count:
        raise node.refused(
            f"queries of shape {shape} are not of num_heads={heads} and kv_num_heads={key_heads}; export it again"
        )
    batch, tokens, _ = shape
    width = shape[2] // count
    parts = [query] if not is_packed else _split(node, query, [heads * width, key_heads * width, key_heads * width])
    parts += [] if is_packed else [node.input(1), node.input(2)]
    of_keys = [batch, tokens, key_heads * width]
    past, other = node.optional(_PAST_KEY), node.optional(_PAST_VALUE)
    rows = 0 if past is None else shape_of(past)[2]
    cache = [batch, key_heads, rows, width]
    if any(shape_of(each) != of_keys for each in parts[1:]) or any(
        shape_of(each) != cache for each in (past, other) if each is not None
    ):
        raise node.refused(f"keys, values and cache for {shape} are not {of_keys} and {cache}; export it again")
    total = node.constant(_TOTAL)
    number = 0 if total is None or total.size != 1 else int(total.reshape(-1)[0])
    if number < tokens and (total is not None or rows < tokens):
        raise node.refused(
            f"total_sequence_length is not a constant of {tokens} or more; give it with --input "
            f"{node.proto.input[_TOTAL]}=const:NUMBER, or a cache of all rows"
        )
    return parts, _Sizes(batch, tokens, heads, key_heads, width, rows, number)


def _split(node: OnnxNode, packed: relax.Expr, widths: list[int]) -> list[relax.Expr]:
    ends = [sum(widths[: at + 1]) for at in range(len(widths))]
    return [
        node.emit(relax.op.strided_slice(packed, [2], [end - width], [end]))
        for end, width in zip(ends, widths, strict=True)
    ]


def _start(node: OnnxNode, sizes: _Sizes) -> relax.Expr:
    """The rows in use before this call, by batch: none in the first call, which has all tokens."""
    lengths = node.emit(relax.op.reshape(node.input(_LENGTHS), [sizes.batch]))
    operands = [lengths] if sizes.total else [lengths, node.emit(relax.op.reshape(node.input(_TOTAL), [1]))]

    def start(lengths: te.Tensor, total: te.Tensor | None = None) -> te.Tensor:
        def element(batch: Any) -> Any:
            before = tirx.max(lengths(batch).astype(_INTEGER) + 1 - sizes.tokens, 0)
            if total is None:
                return before if sizes.total > sizes.tokens else tirx.const(0, _INTEGER)
            return tirx.Select(total(0).astype(_INTEGER) == sizes.tokens, tirx.const(0, _INTEGER), before)

        return te.compute((sizes.batch,), element, name="start")

    return node.emit(node.builder.call_te(start, *operands, primfunc_name_hint="start"))


def _turned(node: OnnxNode, sizes: _Sizes, data: relax.Expr, start: relax.Expr) -> relax.Expr:
    """Queries or keys turned by their positions: those of the input, else the rows of the cache."""
    cos, sin = node.input(_COS), node.input(_SIN)
    positions = node.optional(_POSITIONS)
    if positions is None:
        positions = start
    elif sizes.total == sizes.tokens:  # of the first call only the first position counts
        flat = node.emit(relax.op.reshape(positions, [math.prod(shape_of(positions))]))
        positions = node.emit(relax.op.strided_slice(flat, [0], [0], [1]))
    turning = Turning(
        sizes.width, 2 * shape_of(cos)[-1], bool(node.attributes.get("rotary_interleaved", 0)), by_heads=False
    )
    return turned(node, turning, data, cos, sin, positions)


def _appended(
    node: OnnxNode,
    sizes: _Sizes,
    past: relax.Expr | None,
    new: relax.Expr,
    start: relax.Expr,
    *,
    keeps_all: bool = False,
) -> relax.Expr:
    """The cache (batch, heads, rows, width) with the new rows behind those in use, and zeros behind these, or what was
    there if it `keeps_all`.
    """

    def appended(new: te.Tensor, start: te.Tensor, past: te.Tensor | None = None) -> te.Tensor:
        def element(batch: Any, head: Any, row: Any, at: Any) -> Any:
            place = row.astype(_INTEGER) - start(batch)
            nothing = tirx.const(0, new.dtype)
            inner = tirx.max(tirx.min(place, sizes.tokens - 1), 0)
            is_new = tirx.And(place >= 0, place < sizes.tokens)
            kept = nothing
            if past is not None:
                before = past(batch, head, tirx.min(row, sizes.past - 1), at)
                is_kept = row < sizes.past if keeps_all else tirx.And(place < 0, row < sizes.past)
                kept = tirx.if_then_else(is_kept, before, nothing)
            return tirx.if_then_else(is_new, new(batch, inner, head * sizes.width + at), kept)

        shape = (sizes.batch, sizes.key_heads, sizes.rows, sizes.width)
        return te.compute(shape, element, name="appended")

    operands = [new, start, *([] if past is None else [past])]
    hint: dict[str, Any] = {"primfunc_name_hint": "appended", "primfunc_attrs": APPENDS}
    return node.emit(node.builder.call_te(appended, *operands, **hint))


def _bias(node: OnnxNode, sizes: _Sizes) -> relax.Expr | None:
    """What is added to the scores, with a column for each row of the cache."""
    bias = node.optional(_BIAS)
    if bias is None:
        return None
    shape = shape_of(bias)
    allowed = [(1, sizes.batch), (1, sizes.heads), (sizes.tokens,), range(1, sizes.rows + 1)]
    if len(shape) != len(allowed) or any(dim not in each for dim, each in zip(shape, allowed, strict=True)):
        raise node.refused(f"its attention_bias has the shape {shape}, and {sizes.rows} rows of the cache; fix it")
    missing = sizes.rows - shape[3]
    return node.emit(relax.op.nn.pad(bias, [0] * 7 + [missing])) if missing else bias


def inferred(
    node: NodeProto, types: Mapping[str, TypeProto], constants: Mapping[str, TensorProto]
) -> dict[str, TypeProto]:
    """The types of the outputs, which ONNX does not infer. `types` and `constants`: of the inputs, by name."""
    names = [*node.input, *[""] * _COS]
    if not {names[0], names[5]} <= types.keys():
        return {}
    values = {each.name: each.i for each in node.attribute}
    heads, key_heads = values.get("num_heads", 0), values.get("kv_num_heads", 0)
    batch, tokens, numbers = (dim.dim_value for dim in types[names[0]].tensor_type.shape.dim)
    width = numbers // max(1, heads + (0 if names[1] else 2 * key_heads))
    past = types[names[_PAST_KEY]].tensor_type.shape.dim[2].dim_value if names[_PAST_KEY] in types else 0
    known = constants.get(names[_TOTAL])
    total = 0 if known is None else int(numpy_helper.to_array(known).reshape(-1)[0])
    cache = [batch, key_heads, max(past, total), width]
    kind = types[names[0]].tensor_type.elem_type
    shapes = [[batch, tokens, heads * width], cache, cache]
    return {
        name: make_tensor_type_proto(kind, shape)
        for name, shape in zip(node.output, shapes, strict=False)
        if name and min(shape) > 0
    }


def by_batch(node: OnnxNode, at: int, batch: int) -> relax.Expr | None:
    """An optional input with a number for each batch: a kernel would read beyond fewer. Raises BadModel."""
    value = node.optional(at)
    if value is not None and shape_of(value) != [batch]:
        raise node.refused(
            f"'{node.proto.input[at]}' has the shape {shape_of(value)} for a batch of {batch}; export it again"
        )
    return value


def _tensor_scatter(node: OnnxNode) -> relax.Expr:
    """TensorScatter: a cache, new rows of each batch, and the first places that they get."""
    past, new = node.input(0), node.input(1)
    shape, own = shape_of(past), shape_of(new)
    axis = int(node.attributes.get("axis", -2)) % max(1, len(shape))
    is_circular = bytes(node.attributes.get("mode", b"linear")) == b"circular"
    rows, tokens = shape[axis], own[axis] if len(own) == len(shape) else 0
    if axis < 1 or own != [*shape[:axis], tokens, *shape[axis + 1 :]] or not 0 < tokens <= rows:
        raise node.refused(f"rows of shape {own} do not fit a cache of {shape} along axis {axis}; export it again")
    given = by_batch(node, 2, shape[0])
    start = relax.const(np.zeros(shape[0], _INTEGER)) if given is None else node.emit(as_type(_INTEGER, given))
    if len(shape) == _HEADS_FIRST and axis == _ROWS - 1 and not is_circular:
        batch, heads, _, width = shape
        by_tokens = node.emit(relax.op.permute_dims(new, [0, 2, 1, 3]))
        flat = node.emit(relax.op.reshape(by_tokens, [batch, tokens, heads * width]))
        return _appended(node, _Sizes(batch, tokens, heads, heads, width, rows, 0), past, flat, start, keeps_all=True)

    def scattered(past: te.Tensor, new: te.Tensor, start: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            place = at[axis].astype(_INTEGER) - start(at[0])
            place = tirx.floormod(place, rows) if is_circular else place
            inner = tirx.max(tirx.min(place, tokens - 1), 0)
            is_new = tirx.And(place >= 0, place < tokens)
            return tirx.if_then_else(is_new, new(*at[:axis], inner, *at[axis + 1 :]), past(*at))

        return te.compute(tuple(shape), element, name="scattered")

    return node.emit(node.builder.call_te(scattered, past, new, start, primfunc_name_hint="scattered"))


GROUP_QUERY: Mapping[str, Converter] = {
    "TensorScatter": _tensor_scatter,
    "com.microsoft.GroupQueryAttention": _group_query,
}
"""by ONNX's names"""
