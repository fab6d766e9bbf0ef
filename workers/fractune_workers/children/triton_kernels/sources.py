"""Which functions of a model Triton's kernels may compute, and the module of each: Python that calls the kernels, which
Triton compiles, or interprets on a CPU.

A function is marked by an attribute. To TVM it is another operator than the one without a mark, and the same
computation. So it is an implementation of it.

From compute capability 9.0 on, a GPU's copy engine (TMA) takes a tile of a factor as a box of an argument. One thread
requests a whole tile. A tensor map, which the host encodes, says how the argument lies. So a factor fits whose tiles
are plain boxes: not the gathered rows of a padded image, yet the weights beside them. What lies beyond the argument is
0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import tvm
from tvm.tirx import PrimFunc
from tvm_ffi import structural_equal

from fractune_workers.children.triton_kernels.decisions import Decisions, element_bytes_of
from fractune_workers.children.triton_kernels.finishes import finish_lines, part_text, times_text, type_text
from fractune_workers.children.triton_kernels.sums import Affine, Factor, Sums, Unfit, merged_axes, sums_of
from fractune_workers.children.tvm_api.traces import Workload

FACTOR_AXES = (("row", "depth"), ("depth", "column"))
"""of a tile of each factor, as the kernel multiplies it"""
_MOST_DIMENSIONS = 5
_ALIGNED_BYTES = 16
"""of every stride but the innermost"""


@dataclass(frozen=True)
class Box:
    """A tile in an argument; the outermost dimension first."""

    argument: int
    dtype: str
    extents: tuple[int, ...]
    """of the argument"""
    strides: tuple[int, ...]
    """in elements; the innermost is 1"""
    lengths: tuple[int, ...]
    """of the tile"""
    load: str
    """the tile as Triton's expression over `factor`, `batch` and the first elements of both axes of the tile"""


class _Dimension(NamedTuple):
    name: str
    """its coordinate"""
    extent: int
    stride: int
    length: int


def has_boxes(sums: Sums) -> bool:
    """Whether a tile of at least one factor is a box."""
    axes = {axis for axes in FACTOR_AXES for axis in axes}
    return any(_dimensions(sums, *each, dict.fromkeys(axes, 1)) for each in _factors(sums))


def boxes_of(sums: Sums, decisions: Decisions) -> tuple[Box | None, Box | None]:
    """The boxes of both factors; None for one that is loaded by pointers."""
    lengths = {"row": decisions.rows, "column": decisions.columns, "depth": decisions.depth}
    first, second = (_box(sums, *each, lengths) if decisions.tma else None for each in _factors(sums))
    return first, second


def _factors(sums: Sums) -> list[tuple[Factor, tuple[str, str]]]:
    return list(zip(sums.factors, FACTOR_AXES, strict=True))


def _box(sums: Sums, factor: Factor, axes: tuple[str, str], lengths: Mapping[str, int]) -> Box | None:
    found = _dimensions(sums, factor, axes, lengths)
    if not found:
        return None
    load = f"factor.load([{', '.join(each.name for each in found)}])"
    outer, inner = found[-2:]
    if len(found) > len(axes):
        load += f".reshape({outer.length}, {inner.length})"
    if inner.name != axes[-1]:
        load += ".T"
    _, extents, strides, taken = zip(*found, strict=True)
    return Box(factor.argument, sums.dtype, extents, strides, taken, load)


def _dimensions(
    sums: Sums, factor: Factor, axes: tuple[str, str], lengths: Mapping[str, int]
) -> tuple[_Dimension, ...]:
    """The dimensions of the argument, those of batches outermost; empty where a tile is not a box."""
    strides, offset = factor.place
    if factor.conditions or offset:
        return ()
    whole = sums.extent("batch")
    dimensions = [
        _Dimension(part_text("batch", inner, extent, whole), extent, stride, 1)
        for inner, extent, stride in reversed(merged_axes(sums.groups["batch"], strides))
    ]
    tile: list[_Dimension] = []
    for axis in axes:
        # An axis of one element has no stride.
        (_, extent, stride), *others = merged_axes(sums.groups[axis], strides) or [(1, 1, 0)]
        if others:
            return ()
        tile.append(_Dimension(axis, extent, stride, lengths[axis]))
    tile.sort(key=lambda each: each.stride == 1)
    outer, inner = tile
    aligned = _ALIGNED_BYTES // element_bytes_of(sums.dtype)
    if not outer.stride:
        outer = outer._replace(stride=-(-inner.extent // aligned) * aligned)
    dimensions += [outer, inner]
    apart = all(
        each.stride >= within.extent * within.stride and each.stride % aligned == 0
        for each, within in pairwise(dimensions)
    )
    return tuple(dimensions) if inner.stride == 1 and apart and len(dimensions) <= _MOST_DIMENSIONS else ()


_HEAD = """\
import triton
import triton.language as tl

from fractune_workers.children.triton_kernels.kernels import gather, product
"""
_GATHERED = {"ROWS": 16, "COLUMNS": 128}
_GATHERING_WARPS = 4
_GROUP = 8
"""rows of tiles whose programs are neighbours"""


@dataclass(frozen=True)
class Launch:
    """One kernel of a module."""

    kernel: str
    programs: int
    warps: int
    stages: int
    boxes: tuple[Box, ...] = ()
    """whose tensor maps it takes, behind all pointers"""


@dataclass(frozen=True)
class Source:
    """A module and its kernels, in the order of their launches. Each takes pointers to the operator's arguments, and
    behind them one to partial sums if there are any.
    """

    text: str
    launches: tuple[Launch, ...]
    partial_shape: tuple[int, ...]
    """of the partial sums: parts, batches, rows, columns; empty without"""


def is_fit(function: Any) -> bool:
    """Whether the kernel of products computes a TIR function."""
    try:
        finish_lines(sums_of(function))
    except Unfit:
        return False
    return True


def source_of(sums: Sums, decisions: Decisions, name: str, precision: str) -> Source:
    """The module whose kernels' names begin with `name`. `precision` is of products in float32, as Triton calls it.

    Raises Unfit for an operator behind the sums that has no translation.
    """
    pointers = [f"p{at}" for at in range(len(sums.function.params))]
    boxes = boxes_of(sums, decisions)
    maps = [f"map{at}" for at, box in enumerate(boxes) if box]
    factors = [f"map{at}" if boxes[at] else f"p{each.argument}" for at, each in enumerate(sums.factors)]
    extents = {"BATCH": sums.extent("batch"), "M": sums.extent("row"), "N": sums.extent("column")}
    split = {"SPLIT": decisions.split, "TYPE": type_text(sums.sum_dtype)}
    tiles = -(-extents["M"] // decisions.rows) * -(-extents["N"] // decisions.columns) * extents["BATCH"]
    programs = min(decisions.programs or tiles * decisions.split, tiles * decisions.split)
    own = _constants(sums, decisions, precision) | extents | split | {"PROGRAMS": programs}
    own |= {"BOX_A": bool(boxes[0]), "BOX_B": bool(boxes[1])}
    parts = [
        _HEAD,
        *(load_text(f"load_{'ab'[at]}", sums, at, boxes[at], decisions.depth) for at in range(2)),
        function_text("finish", ["sums", "batch", "row", "column", *pointers], finish_lines(sums)),
    ]
    first = Launch(name, programs, decisions.warps, decisions.stages, tuple(filter(None, boxes)))
    loads = ["load_a", "load_b"]
    if decisions.split == 1:
        taken = [*factors, tuple_text(pointers), *loads, "finish"]
        parts.append(kernel_text(name, [*pointers, *maps], "product", taken, own))
        return Source("\n\n".join(parts), (first,), ())
    taken, second = [*pointers, "partials"], f"{name}_1"
    place = f"(batch * {extents['M']} + row) * {extents['N']} + column"
    here = f"(row < {extents['M']}) & (column < {extents['N']})"
    keep = [f"tl.store(partials + {place}, sums, mask={here})"]
    parts += [
        function_text("keep", ["sums", "batch", "row", "column", "partials"], keep),
        kernel_text(name, [*taken, *maps], "product", [*factors, "(partials,)", *loads, "keep"], own),
        kernel_text(
            second, taken, "gather", ["partials", tuple_text(pointers), "finish"], {**extents, **split, **_GATHERED}
        ),
    ]
    gathered = -(-extents["M"] // _GATHERED["ROWS"]) * -(-extents["N"] // _GATHERED["COLUMNS"]) * extents["BATCH"]
    shape = (decisions.split, extents["BATCH"], extents["M"], extents["N"])
    return Source("\n\n".join(parts), (first, Launch(second, gathered, _GATHERING_WARPS, 1)), shape)


def _constants(sums: Sums, decisions: Decisions, precision: str) -> dict[str, Any]:
    return {
        "K": sums.extent("depth"),
        "ROWS": decisions.rows,
        "COLUMNS": decisions.columns,
        "DEPTH": decisions.depth,
        "GROUP": _GROUP,
        "PRECISION": repr(precision),
    }


def kernel_text(
    name: str, pointers: Sequence[str], called: str, arguments: Sequence[str], own: Mapping[str, Any]
) -> str:
    given = ", ".join([*arguments, *(f"{key}={value}" for key, value in own.items())])
    return function_text(name, pointers, [f"{called}({given})"])


def function_text(name: str, parameters: Sequence[str], lines: Sequence[str]) -> str:
    return f"@triton.jit\ndef {name}({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in lines)


def tuple_text(names: Sequence[str]) -> str:
    return f"({', '.join(names)},)"


def load_text(name: str, sums: Sums, at: int, box: Box | None, tile_depth: int) -> str:
    """A tile of a factor: rows by depth, or depth by columns. Beyond the depth and the image there are zeros."""
    axes = FACTOR_AXES[at]
    load = box.load if box else _gather_text(sums, sums.factors[at], axes, tile_depth)
    return function_text(name, ["factor", "batch", *axes], [f"return {load}"])


def _gather_text(sums: Sums, factor: Factor, axes: Sequence[str], tile_depth: int) -> str:
    place = _affine_text(sums, factor.place)
    # An axis of one element has no stride, and yet the tile has its shape.
    place += "".join(f" + {axis} * 0" for axis in axes if axis not in place)
    conditions = [f"(depth < {sums.extent('depth')})"] if sums.extent("depth") % tile_depth else []
    conditions += [f"({_affine_text(sums, each)} >= 0)" for each in factor.conditions]
    masked = f", mask={' & '.join(conditions)}, other=0" if conditions else ""
    return f"tl.load(factor + ({place}){masked})"


def _affine_text(sums: Sums, affine: Affine) -> str:
    """An index as a sum over the groups."""
    strides, offset = affine
    terms = [str(offset)] if offset else []
    for group, axes in sums.groups.items():
        whole = sums.extent(group)
        terms += [
            times_text(part_text(group, inner, extent, whole), stride)
            for inner, extent, stride in merged_axes(axes, strides)
            if stride
        ]
    return " + ".join(terms) or "0"


_MARK, _ALTERNATIVE = "fractune.triton", "fractune.alternative"
_SCHEDULED = "tirx.is_scheduled"


def with_marks(mod: tvm.IRModule) -> tvm.IRModule:
    """The prepared module in which all functions that fit are marked."""
    fitting = {
        name: each
        for name, each in mod.functions.items()
        if isinstance(each, PrimFunc) and not (each.attrs and each.attrs.get(_SCHEDULED, False)) and is_fit(each)
    }
    changed = mod.clone()
    for name, each in fitting.items():
        changed.update_func(name, marked(each))
    return changed


def marked(function: Any) -> Any:
    """A function that fits, marked."""
    return function.with_attr(_MARK, "")


def alternative(function: Any) -> Any:
    """A function that a model may run in the place of several others. TVM's search leaves it alone."""
    return function.with_attr(_ALTERNATIVE, 1)


def is_alternative(function: Any) -> bool:
    return bool(function.attrs) and _ALTERNATIVE in function.attrs


def is_marked(function: Any) -> bool:
    return bool(function.attrs) and _MARK in function.attrs


def decisions_in(function: Any) -> str:
    """The text of the decisions; empty without."""
    return str(function.attrs[_MARK]) if is_marked(function) else ""


def with_decisions(mod: tvm.IRModule, decisions: Mapping[Workload, str]) -> tvm.IRModule:
    """The module with the text of the decisions of its marked operators in their marks. To TVM, they are scheduled."""
    texts = [(workload.mod, text) for workload, text in decisions.items()]
    changed = mod.clone()
    normalized = tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")
    for name, each in mod.functions.items():
        if isinstance(each, PrimFunc) and is_marked(each):
            own = normalized(each)
            text = next((text for decided, text in texts if structural_equal(decided, own)), None)
            if text is not None:
                changed.update_func(name, each.with_attr({_MARK: text, _SCHEDULED: True}))
    return changed
