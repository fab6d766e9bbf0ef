"""What the reductions of each kernel accumulate in.

- Sums and products of half precision: float32, which is rounded once at the end. Only copies, as of padded images, keep
  their type, so that tensor cores and caches get what they had.
- Very long sums: several accumulators, whose sums are added: one alone loses what is small beside it
- Maxima of floating-point numbers begin at -inf, minima at inf, and so does the padding that they read. TVM takes the
  largest finite number, which would be a result.
"""

import math
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Range, TensorLoad

from fractune_workers.children.rewriting.expressions import is_scheduled
from fractune_workers.children.tvm_api.tir import LIMITS, limit_of, parts_of

HALVES = frozenset({"float16", "bfloat16"})
_WIDE = "float32"
_COMPARED = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or)
_COMPUTED = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)
_CHOICE, _BITS = "prim.if_then_else", "tirx.reinterpret"
_SPATIAL, _REDUCED = 0, 2
"""TVM's numbers of kinds of axes"""
LONG = 2**15
"""terms of a sum with one accumulator, at most"""
_TERMS = 2**12
"""of each accumulator of a longer sum"""


def accumulating(function: Any) -> Any:
    """One kernel with its accumulators as above; a scheduled one as it is."""
    if is_scheduled(function):
        return function
    return _with_limits(with_parts(_widened(function)))


def _with_limits(function: Any) -> Any:
    """Maxima and minima that begin at an infinity, and the padding of what they read."""
    extremes = [block for block in leaf_blocks(function) if _is_extreme(block)]
    if not extremes:
        return function
    read = {
        load.source: type(block.body.value) for block in extremes for load in parts_of(block.body.value, TensorLoad)
    }

    def changed(block: Any) -> Any:
        store: Any = block.body
        if _is_extreme(block):
            limit = limit_of(type(store.value), str(store.buffer.dtype))
            return _with(block, store, tirx.BufferStore(store.buffer, limit, block.init.indices))
        if block.init is None and isinstance(store, tirx.BufferStore) and store.buffer in read:
            value = _padded(store.value, read[store.buffer])
            return _with(block, tirx.BufferStore(store.buffer, value, store.indices), None)
        return block

    return function.with_body(tvm_ffi.structural_map(function.body, ((s_tir.SBlock, changed),)))


def _is_extreme(block: Any) -> bool:
    """Whether the block finds the largest or the smallest of floating-point numbers."""
    store: Any = block.body
    if block.init is None or not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tuple(LIMITS)):
        return False
    value: Any = store.value
    return "float" in str(store.buffer.dtype) and any(_is_load_of(side, store) for side in (value.a, value.b))


def _padded(value: Any, reduction: type) -> Any:
    """Padded by an infinity where TVM pads by the largest finite number."""
    if not (isinstance(value, Call) and value.op.name == _CHOICE and isinstance(value.args[2], tirx.FloatImm)):
        return value
    dtype = str(value.ty.dtype)
    finite = tirx.min_value(dtype) if reduction is tirx.Max else tirx.max_value(dtype)
    if float(value.args[2].value) != float(finite.value):
        return value
    return tirx.if_then_else(value.args[0], value.args[1], limit_of(reduction, dtype))


def _with(block: Any, store: Any, init: Any) -> Any:
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        store,
        init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def with_parts(function: Any) -> Any:
    """Each long sum in parts, and their sum."""
    if not _is_plain(function) or not any(map(_is_long, leaf_blocks(function))):
        return function
    root = function.body.block
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    made: list[Any] = []
    allocated = list(root.alloc_buffers)
    for nest in nests:
        found = parts_of(nest, s_tir.SBlockRealize)
        parted = _parted(found[0]) if len(found) == 1 and _is_long(found[0].block) else None
        made.extend(parted[0] if parted else [nest])
        allocated.extend([parted[1]] if parted else [])
    return function.with_body(_with_nests(root, made, allocated))


def _terms(block: Any) -> int:
    """Numbers that a block reduces to one; 0 for an extent that is not fixed."""
    extents = [axis.dom.extent for axis in block.iter_vars if int(axis.iter_type) == _REDUCED]
    return math.prod(int(each) if isinstance(each, tirx.IntImm) else 0 for each in extents)


def _is_long(block: Any) -> bool:
    """Whether a block adds many floating-point numbers to one."""
    store = block.body
    if (
        block.init is None
        or block.annotations
        or not isinstance(store.value, tirx.Add)
        or "float" not in str(store.buffer.dtype)
    ):
        return False
    return _terms(block) > LONG and _is_load_of(store.value.a, store)


def _parted(realize: Any) -> tuple[list[Any], Any] | None:
    """The loops of the sums and of their sum, and the buffer between. None for a block whose axes are no loops.

    The longest axis is parted; neighbours on it go to neighbouring accumulators, so that these are a vector.
    """
    block = realize.block
    reduced = [axis for axis in block.iter_vars if int(axis.iter_type) == _REDUCED]
    if not all(isinstance(each, tirx.Var) for each in realize.iter_values):
        return None
    longest = max(reduced, key=lambda axis: int(axis.dom.extent))
    extent = int(longest.dom.extent)
    count = min(extent, 1 << (_terms(block) // _TERMS).bit_length())
    part = _axis_of(count, f"{longest.var.name}_part", _SPATIAL)
    step = _axis_of(-(-extent // count), longest.var.name, _REDUCED)
    place = step.var * count + part.var
    kept = [axis for axis in block.iter_vars if int(axis.iter_type) != _REDUCED]
    axes = [*kept, *(step if axis.var.same_as(longest.var) else axis for axis in reduced), part]
    store = block.body
    sums = tirx.decl_buffer([*store.buffer.shape, count], str(store.buffer.dtype), f"{store.buffer.name}_parts")
    at = [*store.indices, part.var]
    term = _moved(store.value.b, longest.var, place)
    zero = tirx.FloatImm(str(store.buffer.dtype), 0.0)
    if extent % count:
        term = tirx.if_then_else(place < extent, term, zero)
    reads = [_moved(region, longest.var, place) for region in block.reads]
    first = _nest_of(
        axes,
        reads,
        _element_of(sums, at),
        f"{block.name_hint}_parts",
        tirx.BufferStore(sums, tirx.Add(tirx.BufferLoad(sums, at), term), at),
        tirx.BufferStore(sums, zero, at),
        block.annotations,
    )
    other = _axis_of(count, longest.var.name, _REDUCED)
    into = [*store.indices, other.var]
    total = tirx.Add(store.value.a, tirx.BufferLoad(sums, into))
    last = _nest_of(
        [*kept, other],
        [_element_of(sums, into)],
        block.writes[0],
        block.name_hint,
        tirx.BufferStore(store.buffer, total, store.indices),
        block.init,
        None,
    )
    return [first, last], sums


def _moved(what: Any, var: Any, place: Any) -> Any:
    return tvm_ffi.structural_map(what, ((tirx.Var, lambda each: place if each.same_as(var) else each),))


# Numbers of half precision


def _widened(function: Any) -> Any:
    """The kernel, in float32 if it adds in half precision."""
    if not (_is_plain(function) and any(map(adds_in_half, leaf_blocks(function)))):
        return function
    return _Widened(function).function()


def adds_in_half(block: Any) -> bool:
    """Whether a block adds or multiplies into a number of half precision."""
    return any(
        str(store.buffer.dtype) in HALVES and _accumulates(store) and not isinstance(store.value, (tirx.Max, tirx.Min))
        for store in parts_of(block.body, tirx.BufferStore)
    )


def _is_moved(value: Any) -> bool:
    """Whether an element is copied, or chosen from others and constants."""
    if isinstance(value, tirx.Select):
        return _is_moved(value.true_value) and _is_moved(value.false_value)
    if isinstance(value, Call) and value.op.name == _CHOICE:
        return all(map(_is_moved, value.args[1:]))
    return isinstance(value, (TensorLoad, tirx.FloatImm))


class _Widened:
    """One kernel in float32."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._wide: dict[Any, Any] = {}
        """by the buffer in half precision: the one in its place"""
        self._ended: list[Any] = []
        """parameters that a sum was written into: they are rounded by blocks of their own"""
        reduced = {
            store.buffer
            for block in leaf_blocks(function)
            for store in parts_of(block.body, tirx.BufferStore)
            if _accumulates(store)
        }
        read = {load.source for block in leaf_blocks(function) for load in parts_of(block.body, TensorLoad)}
        for store in (store for block in leaf_blocks(function) for store in parts_of(block.body, tirx.BufferStore)):
            buffer = store.buffer
            if buffer in self._wide or str(buffer.dtype) not in HALVES or _is_moved(store.value):
                continue
            if buffer in function.params:
                if buffer not in reduced | read:
                    continue
                self._ended.append(buffer)
            self._wide[buffer] = tirx.decl_buffer(buffer.shape, _WIDE, f"{buffer.name}_wide")

    def function(self) -> Any:
        root = self._function.body.block
        body = tvm_ffi.structural_map(root.body, ((s_tir.SBlock, self._block),))
        allocated = [self._wide.get(each, each) for each in root.alloc_buffers]
        allocated += [self._wide[each] for each in self._ended]
        rounded = [_rounded(self._wide[each], each) for each in self._ended]
        return self._function.with_body(_with_nests(root, [body, *rounded], allocated))

    def _block(self, block: Any) -> Any:
        def store(each: Any) -> Any:
            value = self._number(each.value)
            if each.buffer in self._wide:
                return tirx.BufferStore(self._wide[each.buffer], value, each.indices)
            if str(each.buffer.dtype) in HALVES:
                is_kept = _is_moved(each.value) and not any(
                    load.source in self._wide for load in parts_of(each.value, TensorLoad)
                )
                value = each.value if is_kept else tirx.Cast(str(each.buffer.dtype), value)
            return tirx.BufferStore(each.buffer, value, each.indices)

        def region(each: Any) -> Any:
            return tirx.BufferRegion(self._wide.get(each.source, each.source), each.region)

        return s_tir.SBlock(
            block.iter_vars,
            [region(each) for each in block.reads],
            [region(each) for each in block.writes],
            block.name_hint,
            tvm_ffi.structural_map(block.body, ((tirx.BufferStore, store),)),
            None if block.init is None else tvm_ffi.structural_map(block.init, ((tirx.BufferStore, store),)),
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    def _number(self, value: Any) -> Any:
        """The value, in float32 where it was in half precision."""
        is_half = str(value.ty.dtype) in HALVES
        if isinstance(value, tirx.FloatImm):
            return tirx.FloatImm(_WIDE, float(value.value)) if is_half else value
        if isinstance(value, TensorLoad):
            at = [self._number(index) for index in value.indices]
            load = tirx.BufferLoad(self._wide.get(value.source, value.source), at)
            return tirx.Cast(_WIDE, load) if str(load.ty.dtype) in HALVES else load
        if isinstance(value, tirx.Cast):
            dtype = _WIDE if is_half else str(value.ty.dtype)
            number = self._number(value.value)
            return number if str(number.ty.dtype) == dtype else tirx.Cast(dtype, number)
        if isinstance(value, (*_COMPUTED, *_COMPARED)):
            return type(value)(self._number(value.a), self._number(value.b))
        if isinstance(value, tirx.Not):
            return tirx.Not(self._number(value.a))
        if isinstance(value, tirx.Select):
            parts = (value.condition, value.true_value, value.false_value)
            return tirx.Select(*map(self._number, parts))
        if isinstance(value, Call):
            return self._called(value)
        if is_half:
            raise ValueError(f"{type(value).__name__} in half precision")
        return value

    def _called(self, value: Any) -> Any:
        is_half = str(value.ty.dtype) in HALVES
        if value.op.name == _BITS:
            bits = [tirx.Cast(str(each.ty.dtype), self._number(each)) for each in value.args]
            call = Call(value.op, bits, value.attrs, ret_ty=value.ty)
            return tirx.Cast(_WIDE, call) if is_half else call
        parts = [self._number(each) for each in value.args]
        return Call(value.op, parts, value.attrs, ret_ty=_WIDE if is_half else value.ty)


def _rounded(source: Any, buffer: Any) -> Any:
    """The loops that round a buffer into another."""
    axes = [_axis_of(extent, f"v{at}", _SPATIAL) for at, extent in enumerate(buffer.shape)]
    at = [axis.var for axis in axes]
    value = tirx.Cast(str(buffer.dtype), tirx.BufferLoad(source, at))
    store = tirx.BufferStore(buffer, value, at)
    return _nest_of(
        axes, [_element_of(source, at)], _element_of(buffer, at), f"{buffer.name}_rounded", store, None, None
    )


# Loops and blocks of kernels that are not scheduled: what they hold, and others in their place


def leaf_blocks(function: Any) -> list[Any]:
    """The blocks of a kernel that compute."""
    return [block for block in parts_of(function.body, s_tir.SBlock) if block.name_hint != "root"]


def _is_plain(function: Any) -> bool:
    """Whether every block of the kernel is one expression for one element, as those from tensor expressions are."""
    blocks = leaf_blocks(function)
    return bool(blocks) and all(isinstance(block.body, tirx.BufferStore) for block in blocks)


def _accumulates(store: Any) -> bool:
    """Whether a buffer is written from its own elements."""
    return any(load.source.same_as(store.buffer) for load in parts_of(store.value, TensorLoad))


def _is_load_of(value: Any, store: Any) -> bool:
    """Whether a value is an element of the buffer that is written."""
    return isinstance(value, TensorLoad) and value.source.same_as(store.buffer)


def _with_nests(root: Any, parts: list[Any], allocated: list[Any]) -> Any:
    """The body of a kernel with these parts, one after the other."""
    flat = [each for part in parts for each in (part.seq if isinstance(part, tirx.SeqStmt) else [part])]
    body = tirx.SeqStmt(flat) if len(flat) > 1 else flat[0]
    block = s_tir.SBlock([], [], [], root.name_hint, body, None, allocated, root.match_buffers, root.annotations)
    return s_tir.SBlockRealize([], predicate=True, block=block)


def _nest_of(axes: Sequence[Any], reads: Sequence[Any], write: Any, name: str, body: Any, init: Any, notes: Any) -> Any:
    """The loops over a block with these axes (`IterVar`)."""
    loops = [tirx.Var(f"{axis.var.name}_0", axis.var.ty) for axis in axes]
    block = s_tir.SBlock(axes, reads, [write], name, body, init, annotations=notes)
    nest: Any = s_tir.SBlockRealize(loops, predicate=True, block=block)
    for axis, loop in reversed(list(zip(axes, loops, strict=True))):
        nest = tirx.For(loop, axis.dom.min, axis.dom.extent, tirx.ForKind.SERIAL, nest)
    return nest


def _axis_of(extent: Any, name: str, kind: int) -> Any:
    """An axis of a block that begins at 0."""
    whole = tirx.IntImm("int64", extent) if isinstance(extent, int) else extent
    dtype = str(whole.ty.dtype)
    return tirx.IterVar(Range.from_min_extent(tirx.IntImm(dtype, 0), whole), tirx.Var(name, dtype), kind)


def _element_of(buffer: Any, at: Sequence[Any]) -> Any:
    """The region of one element."""
    return tirx.BufferRegion(buffer, [Range.from_min_extent(index, tirx.IntImm("int64", 1)) for index in at])


ACCUMULATORS = tirx.transform.prim_func_pass(lambda function, _mod, _context: accumulating(function), opt_level=0)
"""the pass that does so with every kernel of a module"""
