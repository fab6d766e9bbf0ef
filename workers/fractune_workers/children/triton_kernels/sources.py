"""Writes the module of an operator: Python that calls the kernels, which Triton compiles, or interprets on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fractune_workers.children.triton_kernels.decisions import Decisions
from fractune_workers.children.triton_kernels.expressions import type_text
from fractune_workers.children.triton_kernels.finishes import finish_lines, part_text, times_text
from fractune_workers.children.triton_kernels.sums import Affine, Factor, Sums, Unfit, sums_of

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
    """Whether these kernels compute a TIR function."""
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
    factors = [f"p{each.argument}" for each in sums.factors]
    extents = {"BATCH": sums.extent("batch"), "M": sums.extent("row"), "N": sums.extent("column")}
    split = {"SPLIT": decisions.split, "TYPE": type_text(sums.sum_dtype)}
    tiles = -(-extents["M"] // decisions.rows) * -(-extents["N"] // decisions.columns) * extents["BATCH"]
    programs = min(decisions.programs or tiles * decisions.split, tiles * decisions.split)
    own = _constants(sums, decisions, precision) | extents | split | {"PROGRAMS": programs}
    parts = [
        _HEAD,
        _load_text("load_a", sums, sums.factors[0], "row, depth", decisions.depth),
        _load_text("load_b", sums, sums.factors[1], "depth, column", decisions.depth),
        _function("finish", ["sums", "batch", "row", "column", *pointers], finish_lines(sums)),
    ]
    first = Launch(name, programs, decisions.warps, decisions.stages)
    if decisions.split == 1:
        parts.append(
            _kernel(name, pointers, "product", [*factors, _tuple(pointers), "load_a", "load_b", "finish"], own)
        )
        return Source("\n\n".join(parts), (first,), ())
    taken, second = [*pointers, "partials"], f"{name}_1"
    place = f"(batch * {extents['M']} + row) * {extents['N']} + column"
    here = f"(row < {extents['M']}) & (column < {extents['N']})"
    keep = [f"tl.store(partials + {place}, sums, mask={here})"]
    parts += [
        _function("keep", ["sums", "batch", "row", "column", "partials"], keep),
        _kernel(name, taken, "product", [*factors, "(partials,)", "load_a", "load_b", "keep"], own),
        _kernel(second, taken, "gather", ["partials", _tuple(pointers), "finish"], {**extents, **split, **_GATHERED}),
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


def _kernel(name: str, pointers: Sequence[str], called: str, arguments: Sequence[str], own: Mapping[str, Any]) -> str:
    given = ", ".join([*arguments, *(f"{key}={value}" for key, value in own.items())])
    return _function(name, pointers, [f"{called}({given})"])


def _function(name: str, parameters: Sequence[str], lines: Sequence[str]) -> str:
    return f"@triton.jit\ndef {name}({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in lines)


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)},)"


def _load_text(name: str, sums: Sums, factor: Factor, axes: str, tile_depth: int) -> str:
    """A tile of a factor: rows by depth, or depth by columns. Beyond the depth and the image there are zeros."""
    place = _affine_text(sums, factor.place)
    # An axis of one element has no stride, and yet the tile has its shape.
    place += "".join(f" + {axis} * 0" for axis in axes.split(", ") if axis not in place)
    conditions = [f"(depth < {sums.extent('depth')})"] if sums.extent("depth") % tile_depth else []
    conditions += [f"({_affine_text(sums, each)} >= 0)" for each in factor.conditions]
    masked = f", mask={' & '.join(conditions)}, other=0" if conditions else ""
    return _function(name, ["factor", "batch", *axes.split(", ")], [f"return tl.load(factor + ({place}){masked})"])


def _affine_text(sums: Sums, affine: Affine) -> str:
    """An index as a sum over the groups. Neighbouring axes of a group that lie like one are one."""
    strides, offset = affine
    terms = [str(offset)] if offset else []
    for group, axes in sums.groups.items():
        inner = 1
        merged: list[tuple[int, int, int]] = []
        """inner elements, extent and stride; the innermost axis first"""
        for axis, extent in reversed(axes):
            stride = strides.get(axis, 0)
            if merged and merged[-1][2] * merged[-1][1] == stride:
                size, own, innermost = merged[-1]
                merged[-1] = size, own * extent, innermost
            else:
                merged.append((inner, extent, stride))
            inner *= extent
        terms += [times_text(part_text(group, size, own, inner), stride) for size, own, stride in merged if stride]
    return " + ".join(terms) or "0"
