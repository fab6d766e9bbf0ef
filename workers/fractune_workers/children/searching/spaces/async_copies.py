"""Copies into shared memory that run while a block computes (LDGSTS): a decision, so sketches with them and without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fractune_core.targets import capability
from fractune_workers.children.tvm_api.annotations import ASYNC_COPIES

_FIRST_CAPABILITY = 80
_TILES_AHEAD = (1, 2)
"""of a schedule with tensor cores: copied while an earlier one is multiplied; each needs shared memory of its own"""
_PIPELINE = "software_pipeline_"
_COPIES_AND_COMPUTES = 3
"""statements of a loop that TVM can make a pipeline of: a copy of each operand, and the products"""


def with_async_copies(sketches: Iterable[Any], target: Any) -> list[Any]:
    """The sketches, and each one with asynchronous copies that can have them: those for which TVM plans a pipeline, and
    those with tensor cores, for which it plans none.
    """
    if target.kind.name != "cuda" or (capability(str(target.attrs["arch"])) or 0) < _FIRST_CAPABILITY:
        return list(sketches)
    return [each for sketch in sketches for each in (sketch, *_asynchronous(sketch))]


def _asynchronous(sketch: Any) -> Iterator[Any]:
    own = sketch.copy()
    scope, loop = _copying_loop(own)
    if loop is None:
        return
    if any(name.startswith(_PIPELINE) for name in own.get(loop).annotations):
        own.annotate(loop, ASYNC_COPIES, 1)
        yield own
    elif scope == "shared.dyn" and len(getattr(own.get(loop).body, "seq", ())) == _COPIES_AND_COMPUTES:
        for ahead in _TILES_AHEAD:
            made = own.copy()
            for name, value in {"stage": [0, 0, ahead], "order": [0, 1, 2], "async_stages": [0]}.items():
                made.annotate(loop, f"{_PIPELINE}{name}", value)
            made.annotate(loop, ASYNC_COPIES, 1)
            yield made


def _copying_loop(sch: Any) -> tuple[str, Any]:
    """The memory that the first copy from global memory goes to, and the loop around that copy; None without one."""
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        reads, writes = sch.get(block).reads, sch.get(block).writes
        scope = writes[0].source.scope()
        if scope.startswith("shared") and [each.source.scope() for each in reads] == ["global"]:
            return scope, sch.get_loops(block)[-2]
    return "", None
