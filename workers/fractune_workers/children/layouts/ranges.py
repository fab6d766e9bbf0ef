"""Layout rules of dynamic quantization: the range of a value, and its rounded and clipped numbers, without leaving the
blocks.

Smallest and largest number come from one kernel, which reads the value once and has its own schedule. Where both are
used, the equal calls become one.
"""

from math import prod
from typing import Any

import tvm
from tvm import relax, te
from tvm.s_tir import Schedule

from fractune_workers.children.layouts import elementwise
from fractune_workers.children.layouts.kernels.blocks import Blocks
from fractune_workers.children.layouts.planner import Made, MadeOrPlain, Planner
from fractune_workers.children.layouts.quantized import called
from fractune_workers.children.rewriting.expressions import finished_kernel, operator_of, shape_of

_FLOAT = "float32"
_SMALLEST, _LARGEST = 0, 1
"""outputs of the kernel"""
_MOST_VECTORS, _MOST_CHUNKS = 4, 16
"""that are compared at a time, and that the cores share"""
_SHARED = 2**16
"""numbers, from which on it pays to use several cores"""


def smallest(planner: Planner, call: Any) -> MadeOrPlain:
    return _extreme(planner, call, _SMALLEST)


def largest(planner: Planner, call: Any) -> MadeOrPlain:
    return _extreme(planner, call, _LARGEST)


def clip(planner: Planner, call: Any) -> Made:
    """`clip(round(x / scale) + zero)` is computed in blocks as a whole. The quotient alone is not: in lanes that stand
    for no channel it may be infinite, before it is clipped.
    """
    made = elementwise.unary(planner, call)
    return _quantized(planner, call) if made is None else made


def _quantized(planner: Planner, call: Any) -> Made:
    value, zero = called(planner, call.args[0]), None
    if operator_of(value) == "add":
        zero, value = value.args[1], called(planner, value.args[0])
    quotient = called(planner, value.args[0]) if operator_of(value) == "round" else None
    if operator_of(quotient) != "divide" or quotient is None:
        return None
    data, scale = quotient.args
    known = planner.in_blocks(data)
    if known is None or any(each is not None and prod(shape_of(each)) != 1 for each in (scale, zero)):
        return None
    numbers, blocks = known
    emit = planner.emit
    rounded = emit(relax.op.round(emit(relax.op.divide(numbers, scale))))
    counted = rounded if zero is None else emit(relax.op.add(rounded, zero))
    return relax.Call(call.op, [counted, *call.args[1:]], call.attrs), blocks


def _extreme(planner: Planner, call: Any, which: int) -> MadeOrPlain:
    """The smallest or the largest number of all; None for a reduction over some axes."""
    data = call.args[0]
    if call.attrs.axis is not None or call.attrs.keepdims or str(data.ty.dtype) != _FLOAT:
        return elementwise.reduce(planner, call)
    value, blocks = planner.in_blocks(data) or (data, None)
    count = prod(shape_of(value))
    if count % planner.lanes:
        return None
    pieces = 1 if blocks is None else prod(blocks.physical[: blocks.axis + 1])
    vectors = count // planner.lanes // pieces
    together = _divisor(vectors, _MOST_VECTORS)
    split = _divisor(vectors // together, max(1, _MOST_CHUNKS // pieces))
    chunks = pieces * split, vectors // together // split, together, planner.lanes
    kernel = planner.builder_.add_func(_kernel(chunks, split, blocks), "range")
    flat = planner.emit(relax.op.reshape(value, chunks))
    both = planner.emit(relax.call_tir(kernel, [flat], [relax.TensorType((), _FLOAT)] * 2))
    return relax.TupleGetItem(both, which), None


def _kernel(shape: tuple[int, ...], split: int, blocks: Blocks | None) -> Any:
    """A TIR function from a tensor of `shape` to its smallest and its largest number. The shape has chunks, steps, the
    vectors of a step, and lanes; `split` chunks are of one block of channels. Lanes that stand for no channel do not
    count.

    It searches the largest of the numbers and of the negated ones, first in each chunk and lane.
    """
    data = te.placeholder(shape, _FLOAT, name="data")
    chunk, step, vector, lane = (te.reduce_axis((0, extent)) for extent in shape)

    def of_chunk(c: Any, sign: Any, v: Any, at: Any) -> Any:
        found = data(c, step, v, at)
        signed = tvm.tirx.Select(sign == _SMALLEST, -found, found)
        if blocks is not None and blocks.filled_up:
            exists = blocks.channel(c // split % blocks.count, at)[1]
            signed = tvm.tirx.Select(exists, signed, tvm.tirx.min_value(_FLOAT))
        return te.max(signed, axis=[step])

    parts = te.compute((shape[0], 2, *shape[2:]), of_chunk, name="parts")
    by_lane = te.compute(
        (2, shape[-1]), lambda sign, at: te.max(parts(chunk, sign, vector, at), axis=[chunk, vector]), name="by_lane"
    )
    both = te.compute((2,), lambda sign: te.max(by_lane(sign, lane), axis=[lane]), name="both")
    outputs = [
        te.compute((), lambda: -both(_SMALLEST), name="smallest"),
        te.compute((), lambda: both(_LARGEST), name="largest"),
    ]
    sch = Schedule(te.create_prim_func([data, *outputs]))
    if prod(shape) >= _SHARED:
        sch.parallel(sch.get_loops(sch.get_sblock("parts", "main"))[0])
    _vectorize(sch, "by_lane", 2)
    _vectorize(sch, "parts", 1)
    return finished_kernel(sch)


def _divisor(extent: int, most: int) -> int:
    """The largest one up to `most`."""
    return next(each for each in range(most, 0, -1) if extent % each == 0)


def _vectorize(sch: Any, name: str, reduced: int) -> None:
    """Reduce around vectors, in unrolled loops over the sign and the vectors of a step."""
    block = sch.get_sblock(name, "main")
    loops = sch.get_loops(block)
    inside, around = loops[:-reduced][-3:], loops[-reduced:]
    sch.reorder(*around, *inside)
    *unrolled, vector = inside
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(vector)
    start = sch.decompose_reduction(block, around[0])
    *unrolled, vector = sch.get_loops(start)[-len(inside) :]
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(vector)
