"""Whole models: compile the variants of a bundle."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import tvm
from tvm import relax, s_tir
from tvm.relax.backend.cpu_generic import pipeline as cpu_pipeline
from tvm.relax.backend.cuda import pipeline as cuda_pipeline
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import meta_schedule as ms
from tvm.tirx import PrimFunc
from tvm_ffi import StructuralKey

from fractune_core.errors import FractuneError
from fractune_core.host import limits
from fractune_workers.child.errors import cpu_met, memory_met
from fractune_workers.children.building import cuda
from fractune_workers.children.building.child import Fork, ForkDied
from fractune_workers.children.building.embed_cubin import merged
from fractune_workers.children.building.triton_archive import build_triton_parts, with_room_for_partials
from fractune_workers.children.compiling.arena import in_arena, with_parameters
from fractune_workers.children.compiling.cache_in_place import has_unused_rows, with_entries_for_caches
from fractune_workers.children.compiling.concat_in_place import parts_in_place
from fractune_workers.children.layouts import last_token
from fractune_workers.children.rewriting.expressions import is_scheduled
from fractune_workers.children.triton_kernels.sources import decisions_in, is_marked, with_decisions
from fractune_workers.children.tvm_api.byte_products import with_byte_products
from fractune_workers.children.tvm_api.compiled import kernel_digest, object_of, renamed, written
from fractune_workers.children.tvm_api.cuda_target import compiler_for
from fractune_workers.children.tvm_api.prefetches import with_product_prefetches
from fractune_workers.children.tvm_api.traces import Workload, read_trace

# CUDA graphs: kernels of a model that are launched as one, after a first run that TVM captures.
#
# TVM captures what it launches between the kernels that read an input and those that write an output. Weights do not
# move, so they count as known.

OPTION = "relax.backend.use_cuda_graph"

_WANTED = "fractune.cuda_graphs"
_INPUTS = "num_input"
"""TVM's attribute of a function: its parameters behind that many are always the same"""
_CAPTURED = "cuda_graph_capture"
"""in the names of the functions that TVM makes of captured kernels"""


def with_graphs(mod: tvm.IRModule, weights: int) -> tvm.IRModule:
    """The module whose `main` takes `weights` weights after its inputs, marked for graphs."""
    main = mod["main"]
    marked = mod.clone()
    marked["main"] = main.with_attrs({_WANTED: 1, _INPUTS: len(main.params) - weights})
    return marked


def wants_graphs(mod: tvm.IRModule) -> bool:
    """Whether it is marked for graphs."""
    return _WANTED in (mod["main"].attrs or ())


def has_graphs(lowered: tvm.IRModule) -> bool:
    """Whether TVM found kernels to capture."""
    return any(_CAPTURED in str(var.name_hint) for var in lowered.functions)


_PIECE_BYTES = 1 << 30
"""the least memory for one piece of work, on top of this process's own"""


def side_by_side(work: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of all pieces, in their order. At most one piece a core of this process runs at a time, and fewer
    where they would together address more memory than it may.

    Results and errors must be picklable. Raises the first error, once no fork is left; LimitMet for a piece that used
    up its memory or CPU time.
    """
    most = min(len(os.sched_getaffinity(0)), len(work))
    limit_bytes = piece_bytes = limits.memory_limit()
    if limit_bytes is not None and work:
        have_bytes = limits.addressed_bytes()
        most = max(1, min(most, (limit_bytes - have_bytes) // _PIECE_BYTES))
        piece_bytes = have_bytes + (limit_bytes - have_bytes) // most
        work = [partial(_within, piece_bytes, each) for each in work]
    waiting, running, results, errors = list(work), list[Fork](), list[Any](), list[Exception]()
    while waiting or running:
        while waiting and len(running) < most:
            running.append(Fork(waiting.pop(0)))
        try:
            results.append(running.pop(0).result())
        except ForkDied as error:
            errors.append(_cause(error, limit_bytes, piece_bytes))
        except Exception as error:  # noqa: BLE001  the other forks must be waited for
            errors.append(error)
    if errors:
        raise errors[0]
    return results


def _within(memory_bytes: int, work: Callable[[], Any]) -> Any:
    limits.set_memory_limit(memory_bytes)
    return work()


def _cause(death: ForkDied, limit_bytes: int | None, piece_bytes: int | None) -> FractuneError:
    """`piece_bytes`: the part of the limit that the piece had."""
    if limits.is_death_by_cpu(death.number):
        return cpu_met(limits.cpu_limit_s())
    if limit_bytes and piece_bytes and limits.is_death_by_memory(death.number, death.peak_bytes, piece_bytes):
        return memory_met(limit_bytes)
    return death


# Memory for what several kernels of one operator hand on to each other, planned as the model's other tensors are.
#
# Else the host's code of the operator takes that memory from a pool of its thread. The pool frees it when an operator
# needs more, and at the end of the thread. But a CUDA graph remembers where the memory was.

_GLOBAL = "global"


def with_planned_workspaces(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """The module whose kernels take such memory as arguments behind their outputs. Its calls must be explicit, and its
    tensors not planned yet.
    """
    kernels = {var: each for var, each in mod.functions.items() if isinstance(each, PrimFunc)}
    with_room = {
        var: with_room_for_partials(each, target) if decisions_in(each) else _with_room(each)
        for var, each in kernels.items()
    }
    grown = {var: each for var, each in with_room.items() if len(each.params) > len(kernels[var].params)}
    others = tvm.IRModule({var: each for var, each in mod.functions.items() if var not in grown}, attrs=mod.attrs)
    allocator = _Allocator(others, grown)
    for var, each in others.functions.items():
        if isinstance(each, relax.Function):
            allocator.builder_.update_func(var, allocator.visit_expr(each))
    return allocator.builder_.get()


def _with_room(function: Any) -> Any:
    """The function of a schedule with parameters for the tensors between its kernels."""
    if not isinstance(function.body, s_tir.SBlockRealize):
        return function
    root = function.body.block
    between = [each for each in root.alloc_buffers if each.scope() == _GLOBAL and _has_fixed_shape(each)]
    kept = [each for each in root.alloc_buffers if each not in between]
    block = s_tir.SBlock([], root.reads, root.writes, root.name_hint, root.body, None, kept, [], root.annotations)
    body = s_tir.SBlockRealize([], function.body.predicate, block)
    return PrimFunc([*function.params, *between], body, function.ret_type, function.attrs)


def _has_fixed_shape(buffer: Any) -> bool:
    return all(isinstance(dim, tvm.tirx.IntImm) for dim in buffer.ty.shape)


@mutator
class _Allocator(PyExprMutator):
    """Gives each call of the functions `grown` tensors for their new parameters."""

    def __init__(self, others: tvm.IRModule, grown: dict[Any, Any]) -> None:
        super().__init__(others)
        self._grown = {
            var: (self.builder_.add_func(each, str(var.name_hint)), each.params) for var, each in grown.items()
        }

    def visit_call_(self, op: Any) -> Any:
        visited = super().visit_call_(op)
        if op.op not in self._grown:
            return visited
        function, params = self._grown[op.op]
        rooms = [
            self.builder_.emit(relax.op.builtin.alloc_tensor(relax.ShapeExpr(each.ty.shape), str(each.ty.dtype), 0))
            for each in params[len(visited.args) :]
        ]
        return relax.Call(function, [*visited.args, *rooms], visited.attrs, visited.ty_args)


_KERNEL, _BYTECODE, _DEVICE = "kernel.o", "vm.o", "device.o"
_PACK = "pack"
"""of a part for a GPU: bytecode, or machine code of kernels"""
_OF_HOST = "tirx.is_host_func"
"""the attribute of functions that compute shapes"""
_HANDS_A_CORE = 2
"""Pieces of work for each core: kernels differ in size, and each piece costs a fork"""


def compile_variants(
    mods: Sequence[Any],
    target: Any,
    schedules: Sequence[dict[Workload, str]],
    known: dict[Any, dict[str, bytes]],
    built: Mapping[str, bytes] = MappingProxyType({}),
) -> list[dict[str, bytes]]:
    """Machine code and VM bytecode of prepared modules: object files by name, for each with its `schedules` (workload
    -> trace) applied.

    A module that wants CUDA graphs and has nothing to capture has no files. Equal parts are compiled once, and parts
    in `known` are not compiled. Afterwards `known` holds these parts alone. Nor are kernels compiled that were measured
    before: `built` has their object files by `kernel_digest`.
    Raises FractuneError when a schedule finds no operator: then the passes of ingest and compile have come apart; and
    for a GPU when this machine has no CUDA compiler.
    """
    lowered = [_lowered(mod, target, each) for mod, each in zip(mods, schedules, strict=True)]
    needless = [wants_graphs(mod) and not has_graphs(each) for mod, each in zip(mods, lowered, strict=True)]
    parts = [
        {} if skip else {_key(part): part for part in _parts(each)}
        for skip, each in zip(needless, lowered, strict=True)
    ]
    new = {key: part for each in parts for key, part in each.items() if key not in known}
    made = {
        key: {_KERNEL: renamed(measured, next(iter(part.functions)).name_hint)}
        for key, part in (new.items() if built else ())
        if (measured := built.get(kernel_digest(part)))
    }
    left = [key for key in new if key not in made]
    code = {**known, **made, **dict(zip(left, _compiled([new[key] for key in left], target), strict=True))}
    known.clear()
    known.update({key: code[key] for each in parts for key in each})
    variants = [
        {f"{place}-{name}": made for place, key in enumerate(each) for name, made in known[key].items()}
        for each in parts
    ]
    for_gpu = target.kind.name == "cuda"
    return [_one_device_object(each, target) if for_gpu and each else each for each in variants]


def _lowered(mod: Any, target: Any, schedules: dict[Workload, str]) -> Any:
    """The module with its schedules applied, after all passes over Relax."""
    for_gpu = target.kind.name == "cuda"
    pipeline = cuda_pipeline if for_gpu else cpu_pipeline
    database = ms.database.MemoryDatabase()
    decided = {workload: text for workload, text in schedules.items() if is_marked(workload.mod["main"])}
    for workload, trace in schedules.items():
        if workload in decided:
            continue
        entry = database.commit_workload(workload.mod)
        record = ms.database.TuningRecord(read_trace(trace, workload).trace, entry, [1.0], target, None)
        database.commit_tuning_record(record)
    scheduled_before = _scheduled(mod)
    with target, database, tvm.transform.PassContext(opt_level=3, config={OPTION: wants_graphs(mod)}):
        mod = relax.transform.MetaScheduleApplyDatabase()(with_decisions(mod, decided))
        _check_applied(_scheduled(mod) - scheduled_before, len(schedules))
        mod = last_token.with_function_of_last_token(mod)
        if for_gpu:
            mod = cuda.with_identifiers(cuda.scheduled_by_default(mod, target))
        mod = parts_in_place(tvm.transform.Sequential(pipeline.dataflow_lower_passes(target))(mod))
        if for_gpu:
            mod = with_planned_workspaces(mod, target)
        else:
            alone = with_product_prefetches(with_byte_products(mod, target))
            if (planned := in_arena(with_entries_for_caches(alone))) is not None:
                return planned
            # Only a plan takes numbers of rows and tokens from the caller.
            mod = last_token.without_function_of_last_token(alone)
            mod = mod if has_unused_rows(mod) else with_entries_for_caches(mod)
        return with_parameters(mod, tvm.transform.Sequential(pipeline.finalize_passes(target))(mod))


def _parts(mod: Any) -> list[Any]:
    """Modules that are compiled apart: what is not a kernel, and each kernel. Most variants have most in common."""
    kernels = {var: each for var, each in mod.functions.items() if isinstance(each, PrimFunc)}
    others = {var: each for var, each in mod.functions.items() if var not in kernels}
    machine = [tvm.IRModule(others, attrs=mod.attrs)] if others else []
    return [*machine, *(tvm.IRModule({var: each}) for var, each in kernels.items())]


def _key(part: Any) -> Any:
    """Equal for parts that are equal, names included."""
    return StructuralKey(part)  # type: ignore[call-arg]


def _compiled(parts: Sequence[Any], target: Any) -> list[dict[str, bytes]]:
    """The object files of each part, compiled on all cores."""
    hands = min(len(parts), _HANDS_A_CORE * len(os.sched_getaffinity(0)))
    made = side_by_side([partial(_compile_each, parts[hand::hands], target) for hand in range(hands)])
    return [made[place % hands][place // hands] for place in range(len(parts))]


def _compile_each(parts: Sequence[Any], target: Any) -> list[dict[str, bytes]]:
    with target, tvm.transform.PassContext(opt_level=3):
        return [_compile(part, target) for part in parts]


def _compile(part: Any, target: Any) -> dict[str, bytes]:
    """The object files of a part, and for a GPU its pack."""
    for_gpu = target.kind.name == "cuda"
    functions = part.functions.values()
    if not all(isinstance(each, PrimFunc) for each in functions):
        library = tvm.relax.build(part, target=target, relax_pipeline=None).mod
        if for_gpu:
            return {_PACK: cuda.packed(library)}
        pack = tvm.get_global_func("runtime.ModulePackImportsToLLVM")
        return {_BYTECODE: written(pack(library, False, str(target), ""))}  # noqa: FBT003  TVM's order
    for each in functions:
        if decisions := decisions_in(each):
            host, device = build_triton_parts(each, str(each.attrs["global_symbol"]), target, decisions)
            return {_KERNEL: host, _PACK: device}
    if for_gpu and not any(_OF_HOST in each.attrs for each in functions):
        host, device = cuda.build_parts(part, target, compiler_for(target))
        return {_KERNEL: host, _PACK: device}
    return {_KERNEL: object_of(part, target)}


def _one_device_object(objects: dict[str, bytes], target: Any) -> dict[str, bytes]:
    """The object files of a variant for a GPU, with one in the place of its packs: a library carries one."""
    packs = [made for name, made in objects.items() if name.endswith(_PACK)]
    others = {name: made for name, made in objects.items() if not name.endswith(_PACK)}
    return {**others, _DEVICE: cuda.device_object(merged(packs), target)}


def _scheduled(mod: Any) -> int:
    """The number of functions of the module that have a schedule."""
    return sum(map(is_scheduled, mod.functions.values()))


def _check_applied(scheduled: int, expected: int) -> None:
    if scheduled < expected:
        raise FractuneError(f"only {scheduled} of {expected} schedules found their operator in the compiled model")
