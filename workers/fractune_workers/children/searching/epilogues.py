"""Operators that are fused after a kernel with a design space made by hand."""

from __future__ import annotations

from typing import Any

from fractune_workers.children.searching.sketches import MISFITS


def inline_epilogue(sch: Any, output: Any) -> None:
    """Turn the operators after the output into one computation. It becomes part of the output where each of its
    elements comes from one element of the output.
    """
    *between, last = _after(sch, output) or [None]
    for block in between:
        sch.compute_inline(block)
    if last is None:
        return
    try:
        sch.reverse_compute_inline(last)
    except MISFITS:
        sch.parallel(sch.get_loops(last)[0])


def _after(sch: Any, output: Any) -> list[Any]:
    """The blocks behind `output`, in the order of the module."""
    names = [str(sch.get(block).name_hint) for block in sch.get_child_blocks(sch.get_sblock("root"))]
    return [sch.get_sblock(name, "main") for name in names[names.index(str(sch.get(output).name_hint)) + 1 :]]
