"""A limit on the sums that one thread of a GPU keeps. MetaSchedule has none, and about half of its samples for
convolutions exceed the registers of a thread. Such sums live in memory, and the compiler takes the longest over them.
"""

from __future__ import annotations

from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.postproc import PyPostproc

_MOST = 255
"""32-bit registers of a thread, on every GPU that TVM compiles for"""
_OUTPUT_LEVELS = 5
"""tiles of an output's loop: blocks, virtual threads, threads, and two within a thread; a reduction's loop has three"""


def accumulators(trace: Any) -> int:
    """The sums of one thread, of the block that has most; 1 where no block is tiled."""
    most = sums = 1
    for step in trace.insts:
        if step.kind.name == "GetLoops":  # the next block
            sums = 1
        elif step.kind.name == "SamplePerfectTile" and len(step.outputs) == _OUTPUT_LEVELS:
            _, virtual, _, outer, inner = map(int, trace.decisions[step])
            sums *= virtual * outer * inner
            most = max(most, sums)
    return most


@derived_object
class FitsRegisters(PyPostproc):
    """Refuses a schedule whose threads have more sums than registers."""

    def _initialize_with_tune_context(self, context: Any) -> None:
        """It needs to know nothing."""

    def apply(self, sch: Any) -> bool:
        return accumulators(sch.trace) <= _MOST

    def clone(self) -> Any:
        return FitsRegisters()
