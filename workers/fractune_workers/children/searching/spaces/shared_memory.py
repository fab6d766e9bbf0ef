"""The limit on the shared memory of a sampled schedule: by the kind of memory that it uses."""

from __future__ import annotations

import json
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.postproc import PyPostproc

from fractune_workers.children.tvm_api.cuda_target import shared_bytes_at_launch

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
