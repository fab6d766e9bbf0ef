"""Layout rules of operators that keep the blocks of their operand: element-wise ones, reductions, concatenations, and
those of dynamic quantization.

The smallest and the largest number of a value come from one kernel, which reads the value once and has its own
schedule. Where both are used, the equal calls become one.
"""

import math
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.s_tir import Schedule

from fractune_workers.children.layouts.kernels import direct
from fractune_workers.children.layouts.kernels.direct import Blocks, Window, pack
from fractune_workers.children.layouts.planner import CHANNELS, Array, Made, MadeOrPlain, Planner, is_image
from fractune_workers.children.layouts.quantized import called
from fractune_workers.children.rewriting import expressions

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
    made = unary(planner, call)
    return _quantized(planner, call) if made is None else made


def _quantized(planner: Planner, call: Any) -> Made:
    value, zero = called(planner, call.args[0]), None
    if expressions.operator_of(value) == "add":
        zero, value = value.args[1], called(planner, value.args[0])
    quotient = called(planner, value.args[0]) if expressions.operator_of(value) == "round" else None
    if expressions.operator_of(quotient) != "divide" or quotient is None:
        return None
    data, scale = quotient.args
    known = planner.in_blocks(data)
    if known is None or any(each is not None and prod(expressions.shape_of(each)) != 1 for each in (scale, zero)):
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
        return reduce(planner, call)
    value, blocks = planner.in_blocks(data) or (data, None)
    count = prod(expressions.shape_of(value))
    if count % planner.lanes:
        return None
    pieces = 1 if blocks is None else prod(blocks.physical[: blocks.axis + 1])
    vectors = count // planner.lanes // pieces
    together = _divisor(vectors, _MOST_VECTORS)
    split = _divisor(vectors // together, max(1, _MOST_CHUNKS // pieces))
    chunks = pieces * split, vectors // together // split, together, planner.lanes
    kernel = planner.builder_.add_func(_extreme_kernel(chunks, split, blocks), "range")
    flat = planner.emit(relax.op.reshape(value, chunks))
    both = planner.emit(relax.call_tir(kernel, [flat], [relax.TensorType((), _FLOAT)] * 2))
    return relax.TupleGetItem(both, which), None


def _extreme_kernel(shape: tuple[int, ...], split: int, blocks: Blocks | None) -> Any:
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
    return expressions.finished_kernel(sch)


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


_MOST_TAPS = 49
"""of a pooling window that is written out"""


def _image(planner: Planner, call: Any) -> tuple[Any, str, int] | None:
    """The image of an operator over images in blocks, the name of its layout, and of how many parts it is."""
    known = planner.in_blocks(call.args[0])
    if known is None or not is_image(known[1]) or str(call.attrs.layout) != "NCHW":
        return None
    return known[0], f"NCHW{known[1].size}c", known[1].parts


def pool(planner: Planner, call: Any) -> Made:
    image = _image(planner, call)
    attrs = call.attrs
    kernel = tuple(int(extent) for extent in attrs.pool_size)
    if image is None or str(attrs.out_layout) != "NCHW" or math.prod(kernel) > _MOST_TAPS:
        return None
    made = planner.blocks(expressions.shape_of(call), CHANNELS, image[2])
    options: dict[str, Any] = {"kernel": kernel, "window": Window.of(attrs), "extents": made.shape[2:]}
    if call.op.name == "relax.nn.max_pool2d":
        return planner.kernel(direct.max_pool2d, image[0], name="max_pool2d", **options), made
    # At the edges of such an image, the mean counts other elements.
    if attrs.ceil_mode or options["window"].dilation != (1, 1):
        return None
    options["of_padding"] = bool(attrs.count_include_pad)
    return planner.kernel(direct.avg_pool2d, image[0], name="avg_pool2d", **options), made


def adaptive_pool(planner: Planner, call: Any) -> Made:
    image = _image(planner, call)
    if image is None:
        return None
    value = relax.op.nn.adaptive_avg_pool2d(image[0], call.attrs.output_size, layout=image[1])
    return value, planner.blocks(expressions.shape_of(call), CHANNELS, image[2])


def resize(planner: Planner, call: Any) -> Made:
    image = _image(planner, call)
    if image is None:
        return None
    attrs = call.attrs
    value = relax.op.image.resize2d(
        image[0],
        call.args[1],
        roi=[float(edge) for edge in attrs.roi],
        layout=image[1],
        method=attrs.method,
        coordinate_transformation_mode=attrs.coordinate_transformation_mode,
        rounding_method=attrs.rounding_method,
        cubic_alpha=attrs.cubic_alpha,
        cubic_exclude=attrs.cubic_exclude,
        extrapolation_value=attrs.extrapolation_value,
    )
    return value, planner.blocks(expressions.shape_of(call), CHANNELS, image[2])


def reshape(planner: Planner, call: Any) -> Made:
    """The last step of a channel shuffle. (N, C, H, W) was reshaped to (N, groups, C / groups, H, W), axes 1 and 2
    changed places, and this reshape restores the first shape.
    """
    exchanged = expressions.bound_call(planner.builder_, call.args[0], "permute_dims")
    if exchanged is None or (grouped := expressions.bound_call(planner.builder_, exchanged.args[0], "reshape")) is None:
        return None
    known = planner.in_blocks(grouped.args[0])
    if known is None or known[1].plain != expressions.shape_of(call) or not is_image(known[1]):
        return None
    value, source = known
    batch, channels, *pixels = source.shape
    split = expressions.shape_of(grouped)
    groups = split[1]
    axes = exchanged.attrs.axes or ()
    if [int(axis) for axis in axes] != [0, 2, 1, 3, 4] or split != (batch, groups, channels // groups, *pixels):
        return None
    made = planner.blocks(source.shape, CHANNELS, groups if channels // groups >= planner.lanes else 1)
    kernel = planner.builder_.add_func(_kernel(groups, source, made, str(value.ty.dtype)), "shuffle")
    return relax.call_tir(kernel, [value], relax.TensorType(made.physical, value.ty.dtype)), made


def _kernel(groups: int, source: Blocks, made: Blocks, dtype: str) -> Any:
    """A TIR function from an image in `source` to the shuffled image in `made`: it takes the channels of the groups
    alternately (Zhang et al. 2018, ShuffleNet). A lane that stands for no channel gets the numbers of some channel.

    The loop over lanes is left to LLVM: as a vector, its loads are one by one. (136 channels of 28 x 28 take 60 us on
    one AVX-512 core, as a vector 150.)
    """
    image = te.placeholder(source.physical, dtype, name="image")
    channels = source.shape[source.axis]

    def element(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
        channel = te.min(made.channel(k, lane)[0], channels - 1)
        block, place = source.place(channel % groups * (channels // groups) + channel // groups)
        return image(n, block, y, x, place)

    moved = te.create_prim_func([image, te.compute(made.physical, element, name="shuffle")])
    sch = Schedule(moved)
    n, k, *_ = sch.get_loops(sch.get_sblock("shuffle", "main"))
    sch.parallel(sch.fuse(n, k))
    return expressions.finished_kernel(sch)


UNARY_OF_CHANNELS = frozenset(["exp", "log", "nn.softplus", "rsqrt", "sqrt"])
"""They are computed in blocks only where every lane stands for a channel."""
BINARY = {"add": 0.0, "divide": 1.0, "maximum": 0.0, "minimum": 0.0, "multiply": 0.0, "subtract": 0.0}
"""by operator: the number that fills up a constant operand"""
BINARY_OF_CHANNELS = frozenset({"divide", "power"})
UNARY = expressions.ELEMENTWISE.difference(UNARY_OF_CHANNELS, BINARY, BINARY_OF_CHANNELS)
"""They map finite numbers to finite numbers: a lane that stands for no channel stays harmless."""
REDUCE = {"max": relax.op.max, "mean": relax.op.mean, "min": relax.op.min, "sum": relax.op.sum}


def unary(planner: Planner, call: Any, *, every_lane: bool = False) -> Made:
    known = planner.in_blocks(call.args[0])
    if known is None or (every_lane and known[1].filled_up):
        return None
    value, blocks = known
    return relax.Call(call.op, [value, *call.args[1:]], call.attrs), blocks


def binary(planner: Planner, call: Any) -> Made:
    operands = list(call.args)
    name = expressions.operator_of(call)
    known = (planner.in_blocks(operand) for operand in operands)
    blocks = next((each[1] for each in known if each and each[1].plain == expressions.shape_of(call)), None)
    if blocks is None:
        return None
    if blocks.filled_up and name in BINARY_OF_CHANNELS and planner.constant(operands[1]) is None:
        return None
    laid = [laid_out(planner, operand, blocks, BINARY.get(name, 0.0)) for operand in operands]
    if any(operand is None for operand in laid):
        return None
    return relax.Call(call.op, laid, call.attrs), blocks


def laid_out(planner: Planner, operand: Any, blocks: Blocks, fill: float) -> Any | None:
    """An operand of an element-wise operator, laid out like a value in `blocks`; None where it does not fit."""
    known = planner.in_blocks(operand)
    if known:
        theirs = known[1]
        alike = (len(theirs.shape), theirs.axis, theirs.dropped) == (len(blocks.shape), blocks.axis, blocks.dropped)
        if not alike or theirs.shape[blocks.axis] != blocks.shape[blocks.axis]:
            return None
        same_parts = theirs.parts == blocks.parts
        return known[0] if same_parts else planner.changed(operand, replace(theirs, parts=blocks.parts))
    numbers = planner.constant(operand)
    if numbers is not None:
        return relax.const(packed_operand(numbers, blocks, fill))
    shape = expressions.shape_of(operand)
    if shape == blocks.plain:
        return planner.changed(operand, blocks)
    return _broadcast(planner, operand, shape, blocks)


def _broadcast(planner: Planner, operand: Any, shape: tuple[int, ...], blocks: Blocks) -> Any | None:
    """A repeated operand that is computed at run time; None for one that does not fit.

    It is one number, or one for each channel. Where the last axis is in blocks, it may be repeated along any axes.
    """
    if prod(shape) == 1:
        return operand if len(shape) <= 1 else planner.emit(relax.op.reshape(operand, [1]))
    aligned = (1,) * (len(blocks.shape) - len(shape)) + shape
    if blocks.dropped or any(own not in (1, whole) for own, whole in zip(aligned, blocks.shape, strict=True)):
        return None
    if blocks.is_view:
        inner = [1, 1] if shape[-1] == 1 else [blocks.count, blocks.size]
        outer = [] if prod(shape[:-1]) == 1 else shape[:-1]
        return planner.emit(relax.op.reshape(operand, [*outer, *inner]))
    if not aligned[blocks.axis] == blocks.shape[blocks.axis] == prod(shape):
        return None
    return planner.changed(planner.emit(relax.op.reshape(operand, aligned)), replace(blocks, shape=aligned))


def packed_operand(numbers: Array, blocks: Blocks, fill: float) -> Array:
    """A constant operand, laid out like a value in `blocks`, with `fill` in the lanes that stand for no channel."""
    if numbers.size == 1:  # a scalar becomes a number in the code, a tensor of one element stays an argument
        return numbers.reshape((1,) * min(numbers.ndim, 1))
    aligned = numbers.reshape((1,) * (len(blocks.kept) - numbers.ndim) + numbers.shape)
    whole = np.expand_dims(aligned, blocks.dropped)
    if whole.shape[blocks.axis] == 1:
        return whole[..., None]
    return pack(whole, blocks.axis, blocks.size, fill, blocks.parts)


def reduce(planner: Planner, call: Any) -> Made:
    known = planner.in_blocks(call.args[0])
    if known is None or call.attrs.axis is None:
        return None
    value, blocks = known
    axes = [blocks.kept[int(axis)] for axis in call.attrs.axis]
    if blocks.axis in axes:
        return None
    compute = REDUCE[expressions.operator_of(call)]
    shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(blocks.shape))
    dropped = blocks.dropped if call.attrs.keepdims else tuple(sorted((*blocks.dropped, *axes)))
    return compute(value, axes, keepdims=True), replace(blocks, shape=shape, dropped=dropped)


def squeeze(planner: Planner, call: Any) -> Made:
    known = planner.in_blocks(call.args[0])
    if known is None:
        return None
    value, blocks = known
    given = call.attrs.axis
    ones = [axis for axis in blocks.kept if blocks.shape[axis] == 1]
    axes = ones if given is None else [blocks.kept[int(axis)] for axis in given]
    if blocks.axis in axes:
        return None
    return value, replace(blocks, dropped=tuple(sorted((*blocks.dropped, *axes))))


def part(planner: Planner, split: Any, at: int) -> Made:
    """The result number `at` of a split into whole blocks."""
    known = planner.in_blocks(split.args[0])
    if known is None or known[1].dropped or known[1].parts > 1:
        return None
    value, blocks = known
    axis = int(split.attrs.axis) % len(blocks.shape)
    shapes = [tuple(map(int, field.shape)) for field in split.ty.fields]
    begin = sum(shape[axis] for shape in shapes[:at])
    end = begin + shapes[at][axis]
    if axis == blocks.axis:
        if begin % blocks.size or end % blocks.size:
            return None
        begin, end = begin // blocks.size, end // blocks.size
    return relax.op.strided_slice(value, [axis], [begin], [end]), replace(blocks, shape=shapes[at])


def sliced(planner: Planner, call: Any) -> Made:
    """Of the axes that are not in blocks."""
    known = planner.in_blocks(call.args[0])
    axes, *limits = call.args[1:]
    if known is None or not isinstance(axes, relax.Tuple):
        return None
    value, blocks = known
    places = [blocks.kept[int(axis.value)] for axis in axes.fields]
    if blocks.axis in places:
        return None
    shape = list(blocks.shape)
    for axis, extent in zip(blocks.kept, expressions.shape_of(call), strict=True):
        shape[axis] = extent
    placed = relax.Tuple([relax.prim_value(axis) for axis in places])
    return relax.Call(call.op, [value, placed, *limits], call.attrs), replace(blocks, shape=tuple(shape))


def concat(planner: Planner, call: Any) -> Made:
    fields = call.args[0]
    if not isinstance(fields, relax.Tuple):
        return None
    parts = [planner.in_blocks(field) for field in fields]
    first = next((known for known in parts if known), None)
    if first is None:
        return None
    if first[1].dropped:
        return None
    axis = int(call.attrs.axis) % len(first[1].shape)
    of_channels = axis == first[1].axis
    if of_channels and (
        first[1].parts > 1 or any(expressions.shape_of(field)[axis] % planner.lanes for field in fields)
    ):
        return None
    laid = [planner.into_blocks(field, first[1].axis, first[1].parts)[0] for field in fields]
    return relax.op.concat(laid, axis), replace(first[1], shape=expressions.shape_of(call))
