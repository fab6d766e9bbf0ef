"""The child that makes the plain model: TVM's own pipeline, without planned layouts and implementations of ours."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from benchmarks.support.counterparts import Call, counterparts
from fractune_core.operators import DIRECT, joined_workloads, parted_workloads, workload_hash
from fractune_workers.children.compiling.child import ingest
from fractune_workers.children.compiling.implementations import calls_of, function_of
from fractune_workers.children.importing.model_file import load_model
from fractune_workers.children.importing.passes import direct_hash, extract, prepare
from fractune_workers.children.rewriting.expressions import is_constant
from fractune_workers.children.tvm_api.target import host_cpu, parse_target

_ANY_CORES = 1
"""operators do not depend on the number of cores"""


def plain(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """An imported model as TVM's pipeline `static_shape_tuning`, with its defaults, makes it before it tunes."""
    steps = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.get_pipeline("zero"),
    ]
    with target:
        return tvm.transform.Sequential(steps)(mod)


def calls(mod: tvm.IRModule, target: tvm.target.Target) -> list[Call]:
    """Those of operators that can be tuned, in the order in which the fused module `mod` makes them."""
    operators = {operator.workload_hash: operator for operator in extract(mod, target)}
    named = [(direct_hash(function_of(mod, call)), call) for call in calls_of(mod)]
    return [
        Call(operators[name].name, name, operators[name].flops, _computed(call))
        for name, call in named
        if name in operators
    ]


def _computed(call: Any) -> int:
    """Operands that are not constants."""
    return sum(not is_constant(operand) for operand in call.args[1].fields)


def match(path: str, inputs: dict[str, list[int]], target: str, kinds: Sequence[str]) -> dict[str, Any]:
    """Of the model file at `path`, by workload hash of our operators of these `kinds`: the plain counterpart, or the
    reason why it has none. Raises BadModel.
    """
    parsed = parse_target(target, _ANY_CORES)
    model = load_model(Path(path), inputs, recurrences=parsed.kind.name == "llvm")
    theirs = plain(model, parsed)
    found, why_not = counterparts(calls(prepare(model, parsed), parsed), calls(theirs, parsed), kinds)
    operators = {operator.workload_hash: operator for operator in extract(theirs, parsed)}
    ours = _names_in_the_log(path, inputs, target)
    pairs = {
        ours[own]: {"name": each.name, "weight": each.weight, "workload_hash": other, "workload": each.workload_json}
        for own, other in found.items()
        for each in [operators[other]]
    }
    return {"counterparts": pairs, "why_not": {ours[own]: reason for own, reason in why_not.items()}}


def _names_in_the_log(path: str, inputs: dict[str, list[int]], target: str) -> dict[str, str]:
    """The workload hashes of our operators, with all implementations, by those of the direct ones alone."""
    operators = ingest(path, inputs, target, host_cpu())["operators"]
    direct = (joined_workloads({DIRECT: parted_workloads(each["workload"])[DIRECT]}) for each in operators)
    return {workload_hash(text): each["workload_hash"] for text, each in zip(direct, operators, strict=True)}


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    return {"match": match}
