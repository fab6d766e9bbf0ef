"""The options of TVM's lowering that a schedule for a GPU needs.

They follow from the schedule, so a trace is enough to build the same code again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir

from fractune_core.errors import FractuneError
from fractune_workers.children.building.strided_copies import StridedCopies, copied_singly
from fractune_workers.children.tvm_api.annotations import ASYNC_COPIES

_DYNAMIC = "shared.dyn"


def lowered(mod: tvm.IRModule, lower: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.IRModule:
    """The scheduled module, lowered by TVM's pipeline with the options that it needs.

    Raises FractuneError for a schedule that TVM would lower to other copies than it describes.
    """
    looking = StridedCopies()
    with lowering_context(mod, looking):
        found = lower(mod)
    if not looking.operands:
        return found
    singly, looking = copied_singly(mod, looking.operands), StridedCopies()
    with lowering_context(singly, looking):
        found = lower(singly)
    if looking.operands:
        raise FractuneError(
            f"it copies vectors of '{min(looking.operands)}' with a stride into shared memory asynchronously, and TVM "
            "would copy other bytes"
        )
    return found


def lowering_context(mod: tvm.IRModule, *instruments: Any) -> tvm.transform.PassContext:
    """The present context, with the options for the scheduled module."""
    present = tvm.transform.PassContext.current()
    config = {**present.config, **_options(mod)}
    return tvm.transform.PassContext(opt_level=present.opt_level, config=config, instruments=list(instruments))


def _options(mod: tvm.IRModule) -> dict[str, bool]:
    blocks: list[Any] = []
    loops: list[Any] = []
    for function in mod.functions.values():
        tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, blocks.append), (tvm.tirx.For, loops.append)])
    buffers = [buffer for block in blocks for buffer in block.alloc_buffers if buffer.scope() == _DYNAMIC]
    needed = {
        # StorageRewrite lets a tile of sums reuse that of operands; of another type, TVM cannot address it then. What
        # tiles share of dynamic memory is decided later anyway (MergeSharedMemoryAllocations).
        "tirx.disable_storage_rewrite": len({str(buffer.dtype) for buffer in buffers}) > 1,
        "tirx.use_async_copy": any(ASYNC_COPIES in loop.annotations for loop in loops),
    }
    return {name: True for name, is_needed in needed.items() if is_needed}
