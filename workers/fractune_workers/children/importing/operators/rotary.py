"""Rotary embeddings: pairs of numbers of each head are turned by an angle that grows with the position.

ONNX's own operator and that of ONNX Runtime have the same numbers, in another order of inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from onnx import NodeProto, TensorProto, TypeProto
from tvm import relax, te, tirx

from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, shape_of

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


def inferred(
    node: NodeProto, types: Mapping[str, TypeProto], _constants: Mapping[str, TensorProto]
) -> dict[str, TypeProto]:
    """The type of the result, which is that of the data. `types`: of the inputs, by name."""
    return {node.output[0]: types[node.input[0]]} if node.input and node.input[0] in types else {}


ROTARY: Mapping[str, Converter] = {
    "RotaryEmbedding": partial(_embedding, 3, 1, 2),
    "com.microsoft.RotaryEmbedding": partial(_embedding, 1, 2, 3),
}
"""by ONNX's names"""
