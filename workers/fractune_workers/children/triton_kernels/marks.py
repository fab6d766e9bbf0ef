"""Functions of a model that Triton's kernels may compute, and those that they do compute, marked by an attribute.

A marked function is another operator to TVM than the one without a mark, and the same computation. So it is an
implementation of it.
"""

from collections.abc import Mapping
from typing import Any

import tvm
from tvm.tirx import PrimFunc
from tvm_ffi import structural_equal

from fractune_workers.children.triton_kernels.sources import is_fit
from fractune_workers.children.tvm_api.traces import Workload

_MARK, _ALTERNATIVE = "fractune.triton", "fractune.alternative"
_SCHEDULED = "tirx.is_scheduled"


def with_marks(mod: tvm.IRModule) -> tvm.IRModule:
    """The prepared module in which all functions that fit are marked."""
    fitting = {
        name: each
        for name, each in mod.functions.items()
        if isinstance(each, PrimFunc) and not (each.attrs and each.attrs.get(_SCHEDULED, False)) and is_fit(each)
    }
    changed = mod.clone()
    for name, each in fitting.items():
        changed.update_func(name, marked(each))
    return changed


def marked(function: Any) -> Any:
    """A function that fits, marked."""
    return function.with_attr(_MARK, "")


def alternative(function: Any) -> Any:
    """A function that a model may run in the place of several others. TVM's search leaves it alone."""
    return function.with_attr(_ALTERNATIVE, 1)


def is_alternative(function: Any) -> bool:
    return bool(function.attrs) and _ALTERNATIVE in function.attrs


def is_marked(function: Any) -> bool:
    return bool(function.attrs) and _MARK in function.attrs


def decisions_in(function: Any) -> str:
    """The text of the decisions; empty without."""
    return str(function.attrs[_MARK]) if is_marked(function) else ""


def with_decisions(mod: tvm.IRModule, decisions: Mapping[Workload, str]) -> tvm.IRModule:
    """The module with the text of the decisions of its marked operators in their marks. To TVM, they are scheduled."""
    texts = [(workload.mod, text) for workload, text in decisions.items()]
    changed = mod.clone()
    normalized = tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")
    for name, each in mod.functions.items():
        if isinstance(each, PrimFunc) and is_marked(each):
            own = normalized(each)
            text = next((text for decided, text in texts if structural_equal(decided, own)), None)
            if text is not None:
                changed.update_func(name, each.with_attr({_MARK: text, _SCHEDULED: True}))
    return changed
