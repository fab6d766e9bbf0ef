"""An operator's design space as sketches (traces in JSON with open sampling steps), and the schedules of decided
sketches.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule, meta_schedule as ms
from tvm.s_tir.meta_schedule.postproc import PyPostproc
from tvm.s_tir.schedule import Trace

from fractune_core.targets import capability
from fractune_workers.children.tvm_api.cuda_target import ASYNC_COPIES, shared_bytes_at_launch
from fractune_workers.children.tvm_api.traces import write_trace

# A limit on the sums that one thread of a GPU keeps. MetaSchedule has none, and about half of its samples for
# convolutions exceed the registers of a thread. Such sums live in memory, and the compiler takes the longest over
# them.

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


TILE, CATEGORICAL = "SamplePerfectTile", "SampleCategorical"
"""kinds of sampling steps"""
AT_ROOT = -1
"""The compute location that every block has, a loop nest of its own. TVM moves an invalid location to the one before
it."""
SPATIAL = 0
"""TVM's number for an axis that is not reduced"""
MISFITS = (RuntimeError, ValueError, TypeError, LookupError)
"""TVM's errors for a step that cannot be applied (ScheduleError and InternalError are RuntimeErrors)"""

Sketch = list[Any]
"""[steps, decisions]: a step is [kind, inputs, attributes, outputs], a decision [index of the step, decided value]"""


def sketches_of(spaces: Iterable[Any]) -> list[Sketch]:
    """The design space as traces in JSON, without the steps that the postprocs add."""
    return [json.loads(write_trace(space.trace.simplified(remove_postproc=True))) for space in spaces]


def by_hand(sketches: Any, usual: Any) -> Any:
    """A space generator of these sketches (a function of a schedule), with the postprocs and mutators of the `usual`
    one.
    """
    return ms.space_generator.ScheduleFn(
        sketches, sch_rules=[], postprocs=usual.postprocs, mutator_probs=usual.mutator_probs
    )


def extents_of(block: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the spatial axes of a block, and of the reduced ones."""
    axes = [(int(var.iter_type) == SPATIAL, int(var.dom.extent)) for var in block.iter_vars]
    spatial = tuple(extent for is_spatial, extent in axes if is_spatial)
    return spatial, tuple(extent for is_spatial, extent in axes if not is_spatial)


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


_LIMIT = "max_shared_memory_per_block"
_DYNAMIC = "shared.dyn"


@derived_object
class FitsSharedMemory(PyPostproc):
    """TVM's check of a GPU's limits. A schedule that requests memory at its launch may have all that a block of the
    architecture can request. Any other schedule may have what a kernel has statically, the target's number.
    """

    def __init__(self, static: Any = None, dynamic: Any = None) -> None:
        super().__init__()
        self._static = static
        self._dynamic = dynamic

    def _initialize_with_tune_context(self, context: Any) -> None:
        config = json.loads(str(context.target))
        most = shared_bytes_at_launch(config["arch"], config[_LIMIT])
        self._static = _check_for(context.mod, context.target)
        self._dynamic = _check_for(context.mod, tvm.target.Target({**config, _LIMIT: most}))

    def apply(self, sch: Any) -> bool:
        check = self._dynamic if _requests_memory(sch.trace) else self._static
        return bool(check.apply(sch))

    def clone(self) -> Any:
        return FitsSharedMemory(self._static.clone(), self._dynamic.clone())


def _check_for(mod: Any, target: Any) -> Any:
    check = ms.space_generator.PostOrderApply(sch_rules=[], postprocs=[ms.postproc.VerifyGPUCode()], mutator_probs={})
    return ms.TuneContext(mod=mod, target=target, space_generator=check).space_generator.postprocs[0]


def _requests_memory(trace: Any) -> bool:
    return any(_DYNAMIC in map(str, step.attrs) for step in trace.insts)
