"""Writes the module of an operator: Python that calls the kernels, which Triton compiles, or interprets on a CPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fractune_workers.children.triton_kernels.boxes import FACTOR_AXES, Box, boxes_of
from fractune_workers.children.triton_kernels.decisions import Decisions
from fractune_workers.children.triton_kernels.expressions import type_text
from fractune_workers.children.triton_kernels.finishes import finish_lines, part_text, times_text
from fractune_workers.children.triton_kernels.sums import Affine, Factor, Sums, Unfit, merged_axes, sums_of

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
