"""The one pass list between a model and its operators.

Ingest names the operators of a model, and compile puts schedules on them. Both find an operator by the hash of its TIR,
so both run `prepare`. Another pass list would give other hashes, and no schedule would fit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from fractune_core.errors import BadModel, first_line, shortened
from fractune_core.implementations import DIRECT
from fractune_core.operators import MOST_NAME_CHARACTERS
from fractune_core.workloads import workload_hash
from fractune_workers.children.importing.unlowered import why_unlowered
from fractune_workers.children.layouts.plan import planned
from fractune_workers.children.rewriting import (
    extremes,
    hyperbolic,
    indexing,
    row_kernels,
    special_numbers,
    transcendental,
)
from fractune_workers.children.rewriting.accumulators import ACCUMULATORS
from fractune_workers.children.rewriting.concats import CONCAT, kept, settled
from fractune_workers.children.rewriting.lookups import looked_up
from fractune_workers.children.rewriting.origins import without_origins
from fractune_workers.children.rewriting.simplifying.simplify import simplify
from fractune_workers.children.rewriting.wide import with_wide_operators
from fractune_workers.children.tvm_api.arrays import element_bytes
from fractune_workers.children.tvm_api.traces import Workload, write_workloads

_log = logging.getLogger(__name__)
FROM_FILE = "fractune.from_file"
"""Attribute of a module: names of the functions of loops that its file brought"""
_FLOAT32_BYTES = 4
_LEGALIZATIONS = {
    **extremes.LEGALIZATIONS,
    **hyperbolic.LEGALIZATIONS,
    **indexing.LEGALIZATIONS,
    **special_numbers.LEGALIZATIONS,
}
_LEGALIZATIONS_FOR_CPUS = {
    **_LEGALIZATIONS,
    **hyperbolic.LEGALIZATIONS_FOR_CPUS,
    **transcendental.LEGALIZATIONS,
    **row_kernels.LEGALIZATIONS,
    **special_numbers.LEGALIZATIONS_FOR_CPUS,
    CONCAT: kept,
}


@dataclass(frozen=True)
class Operator:
    """One workload of a model."""

    name: str
    """the function's name in the model, a label: `fused_conv2d4_add1_relu1`"""
    weight: int
    """how often the model runs it; 0 for an alternative to several others, which it may run in their place"""
    workload_hash: str
    """the SHA-256 of its text"""
    workload_json: str
    """the text of its direct implementation"""
    flops: float
    """arithmetic operations of one run, as TVM estimates them; 0 = not known"""
    io_bytes: int
    """sizes of its arguments, inputs and outputs, each once; 0 = not known"""
    narrow: bool
    """whether an argument has elements of less than 4 bytes: then its arithmetic may be faster than float32's"""


def prepare(mod: tvm.IRModule, target: tvm.target.Target, implementation: str = "") -> tvm.IRModule:
    """Plan a Relax module's layouts, legalize and fuse it until every operator is one TIR function. Raises BadModel.

    The `implementation` of this name computes the convolutions that it fits (`layouts/kernels/implementations.py`).

    The order matters: patterns are annotated on the legalized functions, and fusion reads them once constants are
    folded.
    """
    strangers = [str(name) for name in (mod.attrs or {}).get(FROM_FILE, ())]
    mod = mod.without_attr(FROM_FILE)
    passes = tvm.transform.Sequential(
        [
            # Sorting, prefix sums and sampling have no other way into TIR; for a GPU these become kernels of TVM's own.
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            relax.transform.LegalizeOps(
                _LEGALIZATIONS_FOR_CPUS if target.kind.name == "llvm" else _LEGALIZATIONS, enable_warning=False
            ),
            relax.transform.RewriteDataflowReshape(),  # a view costs nothing, a fused copy does
            relax.transform.AnnotateTIROpPattern(),
            ACCUMULATORS,  # of kernels with the pattern of their operator: what rounds a sum is a part of it
            _folding(strangers),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ],
        name="fractune.prepare",
    )
    try:
        with target, tvm.transform.PassContext(opt_level=3):
            direct = with_wide_operators(without_origins(mod))
            return settled(passes(planned(looked_up(simplify(direct)), target, implementation)))
    except BadModel:
        raise
    except Exception as error:
        _log.info("lowering failed: %s", first_line(error))
        raise BadModel(why_unlowered(mod, target)) from error


def _folding(strangers: Sequence[str]) -> Any:
    """A pass that folds constants, and leaves calls of these functions.

    TVM would compile and run them here. They have no checks of bounds, and would fold this process's memory into a
    constant.
    """

    @tvm.transform.module_pass(opt_level=0, name="fractune.fold")
    def fold(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        hidden = {var: function for var, function in mod.functions.items() if var.name_hint in strangers}
        others = mod.clone()
        for var in hidden:
            others.update_func(var, relax.ExternFunc(var.name_hint))
        folded = relax.transform.FoldConstant()(others)
        for var, function in hidden.items():
            folded.update_func(var, function)
        return folded

    return fold


def extract(mod: tvm.IRModule, target: tvm.target.Target) -> list[Operator]:
    """The operators of a prepared module; equal ones are one operator, with the sum of their weights.

    Kernels that TVM has scheduled already are left out. Raises BadModel when there is nothing to tune.
    """
    operators: dict[str, Operator] = {}
    tasks = ms.relax_integration.extract_tasks(mod, target)
    for task in tasks:
        if is_scheduled(task.dispatched[0]["main"]):
            continue
        operator = described(str(task.task_name), int(task.weight), task.dispatched[0])
        known = operators.get(operator.workload_hash)
        weight = operator.weight + (known.weight if known else 0)
        operators[operator.workload_hash] = Operator(**{**vars(known or operator), "weight": weight})
    if not operators:
        why = "TVM has a fixed kernel for each of its operators" if tasks else "no kernel of it can be tuned"
        raise BadModel(f"has nothing to tune: {why}; tune a model with other operators")
    return list(operators.values())


def is_scheduled(function: Any) -> bool:
    """Whether a TIR function is marked as scheduled."""
    return bool(function.attrs and function.attrs.get("tirx.is_scheduled", False))


def direct_hash(mod: tvm.IRModule) -> str:
    """The workload hash of one operator's TIR module, if the operator has no other implementation. Within one model it
    stands for the operator.
    """
    return workload_hash(write_workloads({DIRECT: Workload.of(mod)}))


def described(name: str, weight: int, mod: tvm.IRModule) -> Operator:
    """The operator of one TIR module."""
    arguments = _arguments(mod)
    text = write_workloads({DIRECT: Workload.of(mod)})
    return Operator(
        name=shortened(name, MOST_NAME_CHARACTERS),  # an IRModule may call it anything
        weight=weight,
        workload_hash=workload_hash(text),
        workload_json=text,
        flops=_flops(mod),
        io_bytes=sum(count * element_bytes for count, element_bytes in arguments),
        narrow=any(element_bytes < _FLOAT32_BYTES for _, element_bytes in arguments),
    )


def _arguments(mod: tvm.IRModule) -> list[tuple[int, int]]:
    """Elements of each argument, and bytes of an element; empty where a shape depends on data."""
    try:
        described = [info.as_json() for info in ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True)]
    except (TypeError, ValueError):
        return []
    return [(math.prod(map(int, shape)), element_bytes(dtype)) for _, dtype, shape in described]


def _flops(mod: tvm.IRModule) -> float:
    """TVM's estimate; 0 where TVM has none, as for loops with an extent that depends on data."""
    try:
        return float(tvm.s_tir.analysis.estimate_tir_flops(mod))
    except Exception:  # noqa: BLE001  an estimate steers the budget at most; TVM raises any error for odd loops
        return 0.0
