"""Operators that are fused after a kernel with a design space made by hand."""

from __future__ import annotations

from typing import Any

from fractune_workers.children.searching.spaces.sketches import MISFITS


def inline_epilogue(sch: Any, output: Any) -> None:
    """Turn the operators around the kernel of the output into one computation. It becomes part of the output where each
    of its elements comes from one element of the output.
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
    """The blocks that the output does not need, in the order of the module. The last one reads it; others may come
    before the kernel.
    """
    needed, found = {_name(sch, output)}, [output]
    for block in found:
        new = [each for each in sch.get_producers(block) if _name(sch, each) not in needed]
        needed.update(_name(sch, each) for each in new)
        found += new
    names = [_name(sch, block) for block in sch.get_child_blocks(sch.get_sblock("root"))]
    return [sch.get_sblock(name, "main") for name in names if name not in needed]


def _name(sch: Any, block: Any) -> str:
    return str(sch.get(block).name_hint)
