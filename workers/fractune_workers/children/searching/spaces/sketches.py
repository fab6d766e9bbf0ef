"""An operator's design space as sketches (traces in JSON with open sampling steps), and the schedules of decided
sketches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from fractune_workers.children.tvm_api.traces import write_trace

TILE, CATEGORICAL, LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"
"""kinds of sampling steps"""
AT_ROOT = -1
"""The compute location that every block has, a loop nest of its own. TVM moves an invalid location to the one before
it."""
MISFITS = (RuntimeError, ValueError, TypeError, LookupError)
"""TVM's errors for a step that cannot be applied (ScheduleError and InternalError are RuntimeErrors)"""

Sketch = list[Any]
"""[steps, decisions]: a step is [kind, inputs, attributes, outputs], a decision [index of the step, decided value]"""


def sketches_of(spaces: Iterable[Any]) -> list[Sketch]:
    """The design space as traces in JSON, without the steps that the postprocs add."""
    return [json.loads(write_trace(space.trace.simplified(remove_postproc=True))) for space in spaces]


def block_named(mod: Any, name: str) -> Any | None:
    """The block of this name in the module's `main`; None without one."""
    sch = Schedule(mod, debug_mask="none", error_render_level="none")
    try:
        return sch.get(sch.get_sblock(name, "main"))
    except RuntimeError:  # TVM's ScheduleError: the block does not exist
        return None


def applied(trace: Sketch, mod: Any, postprocs: Iterable[Any]) -> Any | None:
    """The schedule of `mod` from a decided sketch, after `postprocs`; None when the sketch does not fit."""
    sch = Schedule(mod, debug_mask="none", error_render_level="none")
    try:
        Trace.apply_json_to_schedule(trace, sch)
    except MISFITS:
        return None
    return finished(sch, postprocs)


def finished(sch: Any | None, postprocs: Iterable[Any]) -> Any | None:
    """The schedule after `postprocs`; None when one of them refuses it, and for None."""
    if sch is None:
        return None
    try:
        sch.enter_postproc()
        return sch if all(rule.apply(sch) for rule in postprocs) else None
    except MISFITS:
        return None
