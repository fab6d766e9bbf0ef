"""The compiler's child: model file -> operators, and later model file + schedules -> bundle."""

import contextlib
import ctypes
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm

from fractune_core import __version__
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.files.bundles import FORMAT, RECORDS, WEIGHTS, Bundle, object_entry
from fractune_core.files.sealed import write_sealed
from fractune_core.model_inputs import constants_in
from fractune_core.names import WITH_GRAPHS
from fractune_core.operators import DIRECT, TRITON, check_operator, implementation_of, trace_of, workload_hash
from fractune_core.records import UNTUNED
from fractune_core.targets import capability, runs_on
from fractune_core.tir.canonical import WHOLE_NUMBERS
from fractune_workers.children.compiling import implementations, signature
from fractune_workers.children.compiling.cache_in_place import described_caches
from fractune_workers.children.compiling.variants import compile_variants, with_graphs
from fractune_workers.children.compiling.weights import LiftedWeights, PackedWeights
from fractune_workers.children.fusing.fuse import prepare_variants
from fractune_workers.children.importing.model_file import Variants, load_variants, named
from fractune_workers.children.importing.passes import Operator, described, extract, prepare
from fractune_workers.children.layouts.kernels.implementations import IMPLEMENTATIONS, may_have_others
from fractune_workers.children.recurrent.packing import Tiling
from fractune_workers.children.recurrent.recurrence import Recurrence
from fractune_workers.children.recurrent.tilings import with_tilings
from fractune_workers.children.triton_kernels.compiler import is_installed, is_known, load_triton
from fractune_workers.children.triton_kernels.sources import with_marks
from fractune_workers.children.tvm_api.dot_intrinsics import dot_products
from fractune_workers.children.tvm_api.intrinsics import keep_out_gpu_intrinsics, load_intrinsics, prepare_tensor_cores
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus
from fractune_workers.children.tvm_api.target import (
    architecture,
    host_cpu,
    host_device,
    missing_features,
    needed_features,
    parse_target,
    target_key,
)
from fractune_workers.children.tvm_api.traces import Workload, read_workload, write_workloads

_ANY_CORES = 1
"""Operators do not depend on the number of cores, and a trace holds the choices that follow from it"""


@dataclass(frozen=True)
class _Prepared:
    direct: Any
    """the module in which every operator is the direct implementation"""
    operators: list[Operator]
    others: dict[str, Any]
    """modules by implementation, of those that some operator has"""
    workloads: dict[str, dict[str, Workload]]
    """by implementation, by direct hash of the operator"""
    recurrences: dict[str, Recurrence]
    """by direct hash of the operator"""
    hashes: dict[str, str]
    """workload hashes of the operators, by direct hash"""
    called: list[str]
    """direct hashes of the operators, call by call"""
    chains: list[implementations.Chain]
    """calls that compute attention, for which there may be one function"""
    names: signature.Names
    metadata: dict[str, Any]
    """of the model's file"""
    slots: tuple[str | None, ...]
    """of a fused model: the variant's name by slot, None for an empty one"""
    apart: tuple[str, ...]
    """of a fused model: the operators that are called once for each slot"""
    compiled: dict[Any, dict[str, bytes]] = field(default_factory=dict)
    """object files of the last bundle's parts: the next bundle has most of the same parts"""


@lru_cache(maxsize=1)
def _prepared(path: str, inputs: str, identity: str) -> _Prepared:
    """The last model that was read: a model that was just ingested is compiled soon.

    A path stands for one content; `inputs` is JSON, `identity` the key of a target.
    """
    target = parse_target(identity, _ANY_CORES)
    loaded = load_variants(Path(path), json.loads(inputs), recurrences=target.kind.name == "llvm")
    direct, apart = _module(loaded, target)
    with named(Path(path).name):
        operators = extract(direct, target)
    workloads = {operator.workload_hash: {DIRECT: read_workload(operator.workload_json)} for operator in operators}
    called = implementations.hashes_of(direct)
    recurrences = {each.workload_hash: each.recurrence for each in operators if each.recurrence is not None}
    others = {}
    for name in _others(target, operators, workloads):
        other = with_marks(direct) if name == TRITON else _module(loaded, target, name)[0]
        found = implementations.implementations_of(direct, other, called)
        if found:
            others[name] = other
        for own, workload in found.items():
            if own in workloads:
                workloads[own][name] = workload
    chains = implementations.chains_of(direct) if _has_triton(target) else []
    for number, (own, by_name) in enumerate((implementations.workloads_of(chains) if chains else {}).items()):
        operators.append(described(f"attention{number or ''}", 0, by_name[DIRECT].mod))
        workloads[own] = by_name
    hashes = {own: workload_hash(write_workloads(by_name)) for own, by_name in workloads.items()}
    names, metadata = signature.of_file(loaded.files[0], constants_in(json.loads(inputs)))
    return _Prepared(
        direct=direct,
        operators=operators,
        others=others,
        workloads=workloads,
        recurrences=recurrences,
        hashes=hashes,
        called=called,
        chains=chains,
        names=names,
        metadata=metadata,
        slots=loaded.slots,
        apart=apart,
    )


def _module(
    loaded: Variants, target: tvm.target.Target, implementation: str = ""
) -> tuple[tvm.IRModule, tuple[str, ...]]:
    """The prepared module, and of a fused model the names of the operators that are called once for each slot."""
    if not loaded.slots:
        return prepare(loaded.modules[0], target, implementation, last_token=True), ()
    fused = prepare_variants(loaded, target, implementation)
    return fused.module, fused.apart


def _has_triton(target: tvm.target.Target) -> bool:
    return target.kind.name == "cuda" and is_known(target) and is_installed()


def _others(
    target: tvm.target.Target, operators: Sequence[Operator], workloads: Mapping[str, Mapping[str, Workload]]
) -> list[str]:
    """The implementations that some operator may have: of convolutions on a CPU, which are blocked, and of products of
    whole numbers, where the processor has instructions for them. On a GPU Triton has one where it is installed.
    """
    if target.kind.name != "llvm":
        return [TRITON] if _has_triton(target) else []
    convolutions = IMPLEMENTATIONS if any(may_have_others(_shapes(each[DIRECT])) for each in workloads.values()) else ()
    integers = dot_products(target) if any(WHOLE_NUMBERS in each.workload_json for each in operators) else []
    return [*convolutions, *integers]


def _shapes(workload: Workload) -> list[tuple[Any, ...]]:
    """Of the arguments."""
    types: list[Any] = [param.ty for param in workload.mod["main"].params]
    return [tuple(each.shape) for each in types if hasattr(each, "shape")]


def ingest(path: str, inputs: dict[str, list[int]], target: str, isa: str) -> dict[str, Any]:
    """The operators of the model file at `path` for `target`. Their code will run on an `isa`.

    Raises BadModel, or BadRequest for a target that this processor cannot run, as far as this host can know.
    """
    parsed = parse_target(target, _ANY_CORES)
    _check_runs(target, parsed, isa)
    prepared = _prepared(path, json.dumps(inputs), target_key(parsed))
    operators = [
        {
            "workload_hash": prepared.hashes[operator.workload_hash],
            "name": operator.name,
            "weight": operator.weight,
            "workload": write_workloads(prepared.workloads[operator.workload_hash]),
            "flops": 0.0 if operator.narrow else operator.flops,  # the roof is float32's
            "io_bytes": operator.io_bytes,
            "written_bytes": operator.written_bytes,
        }
        for operator in prepared.operators
    ]
    with named(Path(path).name):
        for each in prepared.operators:
            check_operator(each.name, each.weight, each.flops, each.io_bytes, each.written_bytes)
    return {"target": str(parsed), "target_key": target_key(parsed), "operators": operators}


def describe_fused(path: str, inputs: dict[str, list[int]]) -> dict[str, Any]:
    """The number of kinds of operators of the fused model at `path` on this host, and the names of the operators that
    are called once for each slot. Raises BadModel.
    """
    target = parse_target("", _ANY_CORES)
    module, apart = _module(load_variants(Path(path), inputs), target)
    with named(Path(path).name):
        return {"operators": len(extract(module, target)), "apart": list(apart)}


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
    **built: bytes,
) -> None:
    """Compile the model once for each variant (`name`, `traces` by workload hash) and write the bundle to `out`.
    `built`: object files of kernels that builders have made, by `kernel_digest`.
    """
    parsed = parse_target(target, _ANY_CORES)
    load_intrinsics(parsed)
    prepared = _prepared(path, json.dumps(inputs), target_key(parsed))
    for by_name in prepared.workloads.values():
        prepare_tensor_cores(by_name[DIRECT], parsed)
    own = {name: direct for direct, name in prepared.hashes.items()}
    texts = [{own.get(name, name): text for name, text in variant["traces"].items()} for variant in variants]
    schedules = [_schedules(prepared, each) for each in texts]
    weights = LiftedWeights()
    mixed = [_mixed(prepared, each) for each in texts]
    lifted = [weights.lifted(each) for each in mixed]
    operators = [prepared.hashes.get(each) for each in prepared.called]
    mods = [
        with_graphs(each.module, len(each.weights)) if variant["name"].endswith(WITH_GRAPHS) else each.module
        for variant, each in zip(variants, lifted, strict=True)
    ]
    compiled = compile_variants(mods, parsed, schedules, prepared.compiled, built)
    packed = PackedWeights(weights.tensors)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    entries: dict[str, Iterable[bytes | memoryview]] = {RECORDS: [lines.encode()], WEIGHTS: packed}
    described: list[dict[str, Any]] = []
    for variant, each, mod, objects in zip(variants, lifted, mixed, compiled, strict=True):
        if not objects:
            continue
        entries.update({object_entry(len(described), name): [code] for name, code in objects.items()})
        kernels = _kernels(mod, operators)
        described.append(
            {"name": variant["name"], "objects": sorted(objects), "weights": each.weights, "kernels": kernels}
        )
    interface = signature.describe_main(lifted[0].module, len(lifted[0].weights), prepared.names)
    caches = described_caches(lifted[0].module, interface["inputs"], interface["outputs"])
    whole = {
        **manifest,
        "model": {**manifest["model"], **({"metadata": prepared.metadata} if prepared.metadata else {})},
        "target": str(parsed),
        "code": {"architecture": architecture(parsed), "features": needed_features(parsed)},
        **interface,
        **({"caches": caches} if caches else {}),
        **({"slots": list(prepared.slots), "apart": list(prepared.apart)} if prepared.slots else {}),
        **signature.describe_constants(inputs),
        **({} if prepared.slots else signature.describe_dims(Path(path), interface["inputs"])),
        "weights": packed.layout,
        "variants": described,
        "versions": {"tvm": tvm.__version__, "fractune": __version__},
    }
    with Path(out).open("wb") as file:
        write_sealed(file, Bundle.KIND, {"format": FORMAT, **whole}, entries)


def _kernels(mod: Any, operators: Sequence[str | None]) -> dict[str, str]:
    """The workload hashes of a variant's kernels by name, for the operators that the model calls, call by call. Empty
    for other calls than those, as with attention in one kernel.
    """
    calls = implementations.calls_of(mod)
    if len(calls) != len(operators):
        return {}
    names = (str(call.args[0].name_hint) for call in calls)
    return {name: own for name, own in zip(names, operators, strict=True) if own is not None}


def _mixed(prepared: _Prepared, texts: dict[str, str]) -> Any:
    """The model with the implementations that the candidates' `texts` (by direct hash) are of, and with attention as
    one function where `texts` has a candidate of it.
    """
    apart = prepared.recurrences.keys() | {chain.direct_hash for chain in prepared.chains}
    chosen = {
        name: implementation
        for name, text in texts.items()
        if name not in apart and (implementation := implementation_of(text))
    }
    mixed = prepared.direct
    if chosen:
        mixed = implementations.with_implementations(mixed, prepared.others, chosen, prepared.called)
    tilings = {of: Tiling.named(implementation_of(texts.get(own, "")), of) for own, of in prepared.recurrences.items()}
    return implementations.with_attention(with_tilings(mixed, tilings.get), _chosen_chains(prepared, texts))


def _chosen_chains(prepared: _Prepared, texts: dict[str, str]) -> list[implementations.Chain]:
    """The attention that is computed by one function."""
    return [chain for chain in prepared.chains if implementation_of(texts.get(chain.direct_hash, "")) == TRITON]


def _schedules(prepared: _Prepared, texts: dict[str, str]) -> dict[Workload, str]:
    """Traces by workload, of the operators that are called with these; the tilings of recurrences are applied already.
    Raises FractuneError for an operator, or an implementation, that this model lacks.
    """
    chains = _chosen_chains(prepared, texts)
    called = (
        {*implementations.names_outside(prepared.direct, chains), *(each.direct_hash for each in chains)}
        if chains
        else texts
    )
    found = {}
    for name, text in texts.items():
        of = prepared.recurrences.get(name)
        is_tiling = of and (Tiling.named(implementation_of(text), of) or text == UNTUNED)
        if name not in called or is_tiling:
            continue
        workload = prepared.workloads.get(name, {}).get(implementation_of(text))
        if workload is None and implementation_of(text) == TRITON:
            load_triton()  # the reason, where it is not installed
        if workload is None:
            lacking = f"{prepared.hashes.get(name, name)} {implementation_of(text)}".strip()
            raise FractuneError(f"the model has no operator {lacking}; tune it again with this version")
        found[workload] = trace_of(text)
    return found


def device() -> dict[str, Any]:
    """The CPU of this host, for bundles that are made without a measurer."""
    return host_device().to_json()


_MMAP_THRESHOLD, _WEIGHT_BYTES = -3, 1 << 20


def _give_weights_back() -> None:
    """Have freed weights leave this process at once. By default, glibc keeps memory below the largest block freed so
    far: half as much again as the weights of a model.
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _WEIGHT_BYTES)


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    _give_weights_back()
    keep_out_gpu_intrinsics()
    stay_off_gpus()
    return {"ingest": ingest, "compile_bundle": compile_bundle, "describe_fused": describe_fused, "device": device}
