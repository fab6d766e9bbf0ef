"""The compiler's child: model file -> operators, and later model file + schedules -> bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import tvm

from fractune_core import __version__
from fractune_core.bundles import RECORDS, WEIGHTS, object_entry, write_bundle
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.targets import capability, runs_on
from fractune_workers.children.compiling.side_by_side import side_by_side
from fractune_workers.children.compiling.variants import compile_variant
from fractune_workers.children.importing.model_file import load_model
from fractune_workers.children.importing.passes import Operator, extract, prepare
from fractune_workers.children.importing.signature import describe_main, onnx_names
from fractune_workers.children.tvm_api.intrinsics import keep_out_gpu_intrinsics, load_intrinsics
from fractune_workers.children.tvm_api.no_gpu import stay_off_gpus
from fractune_workers.children.tvm_api.target import (
    architecture,
    host_cpu,
    host_device,
    missing_features,
    needed_features,
    parse_target,
    target_key,
)
from fractune_workers.children.tvm_api.tensor_cores import prepare_tensor_cores
from fractune_workers.children.tvm_api.traces import read_workload
from fractune_workers.children.tvm_api.weights import lift_weights, pack_weights

_ANY_CORES = 1
"""Operators do not depend on the number of cores, and a trace holds what came of it"""


@dataclass(frozen=True)
class _Prepared:
    module: Any
    operators: list[Operator]


@lru_cache(maxsize=1)
def _prepared(path: str, inputs: str, identity: str) -> _Prepared:
    """The model read last: what was just ingested is compiled soon.

    A path stands for one content; `inputs` is JSON, `identity` the key of a target.
    """
    target = parse_target(identity, _ANY_CORES)
    module = prepare(load_model(Path(path), json.loads(inputs)), target)
    return _Prepared(module, extract(module, target))


def ingest(path: str, inputs: dict[str, list[int]], target: str, isa: str) -> dict[str, Any]:
    """The operators of the model file at `path` for `target`, whose code is to run on an `isa`.

    Raises BadModel, or BadRequest for a target that such a processor cannot run, as far as this host can tell.
    """
    parsed = parse_target(target, _ANY_CORES)
    _check_runs(target, parsed, isa)
    prepared = _prepared(path, json.dumps(inputs), target_key(parsed))
    return {
        "target": str(parsed),
        "target_key": target_key(parsed),
        "operators": [
            {
                "workload_hash": operator.workload_hash,
                "name": operator.name,
                "weight": operator.weight,
                "workload": operator.workload_json,
                # The roof is float32's: how close to it other arithmetic comes says nothing.
                "flops": 0.0 if operator.narrow else operator.flops,
                "io_bytes": operator.io_bytes,
            }
            for operator in prepared.operators
        ],
    }


def _check_runs(text: str, target: tvm.target.Target, isa: str) -> None:
    of_gpu = capability(isa) is not None
    if target.kind.name == "cuda":
        if not of_gpu:
            raise BadRequest(
                f"target '{text}' is for a GPU, and the shares of this job are of a CPU ({isa}); "
                "ask for shares of a GPU, or leave out --target"
            )
        arch = str(target.attrs["arch"])
        if not runs_on(arch, isa):
            raise BadRequest(f"target '{text}': code for {arch} does not run on this GPU ({isa}); write cuda:{isa}")
    elif of_gpu:
        raise BadRequest(f"target '{text}' is for a CPU, and the shares of this job are of a GPU; write cuda:{isa}")
    elif isa == host_cpu() and (missing := missing_features(target)):
        raise BadRequest(f"target '{text}' needs what this processor ({isa}) lacks: {', '.join(missing)}")


def compile_bundle(
    path: str,
    inputs: dict[str, list[int]],
    target: str,
    variants: list[dict[str, Any]],
    manifest: dict[str, Any],
    records: list[dict[str, Any]],
    out: str,
) -> None:
    """Compile the model once for each variant (`name`, `traces` by workload hash) and write the bundle to `out`."""
    parsed = parse_target(target, _ANY_CORES)
    load_intrinsics(parsed)
    prepared = _prepared(path, json.dumps(inputs), target_key(parsed))
    workloads = {op.workload_hash: read_workload(op.workload_json) for op in prepared.operators}
    for workload in workloads.values():
        prepare_tensor_cores(workload, parsed)
    lifted, weights = lift_weights(prepared.module)
    packed, layout = pack_weights(weights)
    entries: dict[str, bytes] = {
        RECORDS: "".join(json.dumps(record) + "\n" for record in records).encode(),
        WEIGHTS: packed,
    }
    schedules = [_known(workloads, variant["traces"]) for variant in variants]
    compiled = _each_once(partial(compile_variant, lifted, parsed), schedules)
    described = []
    for index, (variant, objects) in enumerate(zip(variants, compiled, strict=True)):
        entries.update({object_entry(index, name): code for name, code in objects.items()})
        described.append({"name": variant["name"], "objects": sorted(objects)})
    whole = {
        **manifest,
        "target": str(parsed),
        "code": {"architecture": architecture(parsed), "features": needed_features(parsed)},
        **describe_main(lifted, len(weights), onnx_names(Path(path))),
        "weights": layout,
        "variants": described,
        "versions": {"tvm": tvm.__version__, "fractune": __version__},
    }
    with Path(out).open("wb") as file:
        write_bundle(file, whole, entries)


def _each_once(compiled: Callable[[dict[Any, str]], Any], schedules: list[dict[Any, str]]) -> list[Any]:
    """What `compiled` gives for each; equal ones, as of shares that have the same winners, are compiled once."""
    different = [each for number, each in enumerate(schedules) if each not in schedules[:number]]
    code = side_by_side([partial(compiled, each) for each in different])
    return [code[different.index(each)] for each in schedules]


def _known(workloads: dict[str, Any], traces: dict[str, str]) -> dict[Any, str]:
    """Traces by workload. Raises FractuneError for an operator that this model does not have."""
    strangers = set(traces) - set(workloads)
    if strangers:
        raise FractuneError(f"the model has no operator {min(strangers)}; tune it again with this version")
    return {workloads[name]: trace for name, trace in traces.items()}


def device() -> dict[str, Any]:
    """The CPU of this host, for bundles that are made without a measurer."""
    return host_device().to_json()


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    keep_out_gpu_intrinsics()
    stay_off_gpus()
    return {"ingest": ingest, "compile_bundle": compile_bundle, "device": device}
