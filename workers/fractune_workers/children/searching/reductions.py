"""A schedule for reductions that leave the innermost axis as it is, as over the pixels of an image in blocks.

MetaSchedule's sketches keep a reduction's loops innermost, so that its innermost spatial axis is walked number by
number. Here it is one vector, the reduction runs around it, and the other axes are shared among the cores.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from fractune_workers.children.searching.sketches import MISFITS

_SPATIAL = 0
"""TVM's number for an axis that is not reduced"""


def vector_reduction(mod: Any, lanes: int) -> Any | None:
    """A schedule of an operator with one reduction, whose innermost spatial extent `lanes` divides; None for others."""
    sch = Schedule(mod, debug_mask="none", error_render_level="none")
    try:
        reductions = [block for block in sch.get_child_blocks(sch.get_sblock("root")) if _is_reduction(sch, block)]
        return _scheduled(sch, reductions[0], lanes) if len(reductions) == 1 else None
    except MISFITS:
        return None


def _is_reduction(sch: Any, block: Any) -> bool:
    return any(int(var.iter_type) != _SPATIAL for var in sch.get(block).iter_vars)


def _scheduled(sch: Any, block: Any, lanes: int) -> Any | None:
    for producer in sch.get_producers(block):
        sch.compute_inline(producer)
    variables, loops = sch.get(block).iter_vars, sch.get_loops(block)
    if len(variables) != len(loops):
        return None
    kinds = [int(var.iter_type) == _SPATIAL for var in variables]
    spatial = [loop for loop, is_spatial in zip(loops, kinds, strict=True) if is_spatial]
    reduced = [loop for loop, is_spatial in zip(loops, kinds, strict=True) if not is_spatial]
    if not spatial or int(sch.get(spatial[-1]).extent) % lanes:
        return None
    around, vector = sch.split(spatial[-1], [None, lanes])
    sch.reorder(*spatial[:-1], around, *reduced, vector)
    sch.parallel(sch.fuse(*spatial[:-1], around))
    sch.vectorize(vector)
    start = sch.decompose_reduction(block, reduced[0])
    sch.vectorize(sch.get_loops(start)[-1])
    return sch
