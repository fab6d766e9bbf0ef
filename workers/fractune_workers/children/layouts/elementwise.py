"""Layout rules of operators that keep the blocks of their operand: element-wise ones, reductions, concatenations."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from fractune_workers.children.layouts.kernels.blocks import Blocks, pack
from fractune_workers.children.layouts.planner import Array, Made, Planner
from fractune_workers.children.rewriting.expressions import ELEMENTWISE, operator_of, shape_of

UNARY_OF_CHANNELS = frozenset(["exp", "log", "nn.softplus", "rsqrt", "sqrt"])
"""They are computed in blocks only where every lane stands for a channel."""
BINARY = {"add": 0.0, "divide": 1.0, "maximum": 0.0, "minimum": 0.0, "multiply": 0.0, "subtract": 0.0}
"""by operator: the number that fills up a constant operand"""
BINARY_OF_CHANNELS = frozenset({"divide", "power"})
UNARY = ELEMENTWISE.difference(UNARY_OF_CHANNELS, BINARY, BINARY_OF_CHANNELS)
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
    name = operator_of(call)
    known = (planner.in_blocks(operand) for operand in operands)
    blocks = next((each[1] for each in known if each and each[1].plain == shape_of(call)), None)
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
    shape = shape_of(operand)
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
    compute = REDUCE[operator_of(call)]
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
    if of_channels and (first[1].parts > 1 or any(shape_of(field)[axis] % planner.lanes for field in fields)):
        return None
    laid = [planner.into_blocks(field, first[1].axis, first[1].parts)[0] for field in fields]
    return relax.op.concat(laid, axis), replace(first[1], shape=shape_of(call))
