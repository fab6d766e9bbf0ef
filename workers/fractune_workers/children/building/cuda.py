"""A scheduled TIR module -> host code and machine code for a GPU, on a machine without one.

TVM is kept from looking for a GPU (`stay_off_gpus`) and generates source. A CUDA compiler makes a cubin from the
source, for the architecture that the target names. Host object and cubin travel as one archive.

TVM's pass InjectPTXAsyncCopy ignores the stride of a vector, such as that of a transposed operand. An asynchronous copy
would become a contiguous one, of wrong and often misaligned bytes. So such a copy goes number by number: asynchronously
where a number has 4 bytes, and through a register where it has fewer.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.instrument import pass_instrument
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.tirx import PrimFunc
from tvm.tirx.build import split_host_device_mods, tir_to_runtime
from tvm.tirx.stmt import ForKind

from fractune_core.errors import FractuneError
from fractune_core.targets import FAST_MATH
from fractune_workers.children.building.embed_cubin import embed_cubin
from fractune_workers.children.tvm_api.artifacts import pack
from fractune_workers.children.tvm_api.compiled import written
from fractune_workers.children.tvm_api.cuda_target import ASYNC_COPIES, shared_bytes_at_launch
from fractune_workers.children.tvm_api.tir import parts_of
from fractune_workers.cuda.compilers import CudaCompiler

_ASYNC, _DMA = "s_tir.InjectPTXAsyncCopy", "s_tir.LowerAsyncDMA"
_SCOPE, _SELECT = "async_scope", "prim.if_then_else"


@pass_instrument
class StridedCopies:
    """Looks at a module right before TVM makes its copies asynchronous."""

    def __init__(self) -> None:
        self.operands: set[str] = set()
        """names of the tensors that would be copied wrongly"""

    def should_run(self, mod: tvm.IRModule, info: Any) -> bool:
        """Not the pass that makes one copy of a whole loop: it is for processors with a copy engine of another kind."""
        del mod
        return bool(info.name != _DMA)

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        if info.name != _ASYNC:
            return
        for function in mod.functions.values():
            tvm_ffi.structural_walk(function.body, (tirx.AttrStmt, self._note_scope))

    def _note_scope(self, node: Any) -> None:
        if node.attr_key == _SCOPE:
            tvm_ffi.structural_walk(node.body, (tirx.BufferStore, self._note_copy))

    def _note_copy(self, store: Any) -> None:
        load = _load_of(store)
        if load is not None and any(map(_has_stride, [*store.indices, *load.indices])):
            self.operands.add(str(load.source.name))


def copied_singly(mod: tvm.IRModule, operands: set[str]) -> tvm.IRModule:
    """The scheduled module; its copies of the operands into shared memory copy number by number."""

    def unrolled(loop: Any) -> Any:
        if loop.kind != ForKind.VECTORIZED or not _copies(loop, operands):
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, ForKind.UNROLLED, loop.body)

    def changed(function: Any) -> Any:
        return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, unrolled)))

    named = {var: changed(each) if isinstance(each, tirx.PrimFunc) else each for var, each in mod.functions.items()}
    return tvm.IRModule(named, attrs=mod.attrs)


def _copies(loop: Any, operands: set[str]) -> bool:
    found = parts_of(loop.body, tirx.BufferStore)
    loads = [_load_of(store) for store in found if str(store.buffer.scope()).startswith("shared")]
    return any(load is not None and str(load.source.name) in operands for load in loads)


def _load_of(store: Any) -> Any:
    """What the statement copies, also if it copies a part of a tile's numbers only; None if it computes."""
    value = store.value
    if isinstance(value, tvm.ir.Call) and value.op.name == _SELECT:
        value = value.args[1]
    return value if isinstance(value, tvm.ir.TensorLoad) else None


def _has_stride(index: Any) -> bool:
    return any(not isinstance(ramp.stride, tirx.IntImm) or int(ramp.stride) != 1 for ramp in parts_of(index, tirx.Ramp))


# Names of a kernel's variables as C's identifiers: code for a GPU is generated as text.
#
# TVM replaces the dots of a name alone. Models have other names too, such as `gpu_0/data_0` for an input.

_IDENTIFIER = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
"""Dots are allowed: TVM replaces them, and names threads with them."""
_FOREIGN = re.compile(r"\W", re.ASCII)


def with_identifiers(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with all names of variables in its TIR functions as identifiers. TVM keeps them apart."""
    named = {var: _named(each) if isinstance(each, PrimFunc) else each for var, each in mod.functions.items()}
    return tvm.IRModule(named, attrs=mod.attrs)


def _named(function: Any) -> Any:
    graph = json.loads(tvm.ir.save_json(function))
    nodes: list[dict[str, Any]] = graph["nodes"]
    for node in [each for each in nodes if each["type"] == "ir.Var"]:
        name = nodes[node["data"]["name"]]["data"]
        if not _IDENTIFIER.fullmatch(name):
            # A text of its own: the graph holds equal texts once, and another may not be a name.
            node["data"]["name"] = len(nodes)
            nodes.append({"type": "ffi.String", "data": "_" + _FOREIGN.sub("_", name)})
            function = None
    return function or tvm.ir.load_json(json.dumps(graph))


# The needs of a kernel for a thread block, checked before it is compiled: an excess is the candidate's failure.
#
# A compiler finds the excess only after seconds, and reports it in its own words. Sometimes only the launch finds it.

_STATIC, _DYNAMIC = "shared", "shared.dyn"


class TooLarge(FractuneError):
    """A kernel needs more threads or shared memory than a block of the target has."""


@dataclass
class BlockNeeds:
    """The threads and the memory of one block of a kernel."""

    extents: dict[str, int] = field(default_factory=dict)
    """threads by axis: `threadIdx.x`"""
    static_bytes: int = 0
    """shared memory of a size that is compiled in"""
    dynamic_bytes: int = 0
    """shared memory that the launch requests"""

    @property
    def threads(self) -> int:
        return math.prod(self.extents.values())


def needs_of(kernel: Any) -> BlockNeeds:
    """The needs of a block of a lowered kernel (a device function of TIR)."""
    needs = BlockNeeds()

    def note_threads(node: Any) -> None:
        axis = str(node.node.thread_tag) if node.attr_key == "thread_extent" else ""
        if axis.startswith("threadIdx."):
            needs.extents[axis] = max(int(node.value), needs.extents.get(axis, 1))

    def note_memory(node: Any) -> None:
        if node.buffer.scope() == _STATIC:
            needs.static_bytes += _bytes_of(node.buffer)
        elif node.buffer.scope() == _DYNAMIC:
            needs.dynamic_bytes += _bytes_of(node.buffer)

    tvm_ffi.structural_walk(kernel.body, [(tvm.tirx.AttrStmt, note_threads), (tvm.tirx.AllocBuffer, note_memory)])
    return needs


def check_limits(kernels: tvm.IRModule, target: tvm.target.Target) -> None:
    """Raises TooLarge for the first kernel that asks for more than the target's block has."""
    threads, static_bytes = (
        int(target.attrs[name]) for name in ("max_threads_per_block", "max_shared_memory_per_block")
    )
    most_bytes = shared_bytes_at_launch(str(target.attrs["arch"]), static_bytes)
    for variable, kernel in kernels.functions.items():
        needs = needs_of(kernel)
        _compare(variable.name_hint, "threads", needs.threads, threads)
        _compare(variable.name_hint, "bytes of static shared memory", needs.static_bytes, static_bytes)
        _compare(variable.name_hint, "bytes of shared memory", needs.static_bytes + needs.dynamic_bytes, most_bytes)


def _compare(kernel: str, what: str, needed: int, there: int) -> None:
    if needed > there:
        raise TooLarge(f"{kernel} needs {needed} {what} per block; the target has {there}")


def _bytes_of(buffer: Any) -> int:
    elements = math.prod(int(extent) for extent in buffer.shape)
    return elements * tvm_ffi.dtype(str(buffer.dtype)).itemsize


# The options of TVM's lowering that a schedule for a GPU needs.
#
# They follow from the schedule, so a trace is enough to build the same code again.


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


_READ = re.compile(r"\s*[a-z]+\d (v_\w*) = (\*\([a-z]+\d\*\)\(.*\));")
"""A vector that TVM's generator of CUDA C reads from memory and names"""
_VECTOR = re.compile(r"\bv_\w*")
_BARRIER = "__syncthreads();"


def with_fresh_reads(source: str) -> str:
    """The CUDA C with vectors read again after a barrier.

    TVM's generator gives equal expressions of a conversion one name, and a read of memory is an expression like any
    other. Behind a barrier the memory has other numbers: the second of two tiles of sums was the first one again.
    """
    lines: list[str] = []
    reads: dict[str, str] = {}
    stale: set[str] = set()
    for line in source.splitlines():
        if line.startswith("}"):  # the end of a function
            reads, stale = {}, set()
        if found := _READ.fullmatch(line):
            reads[found[1]] = found[2]
            stale.discard(found[1])
        elif stale:
            old = stale.intersection(_VECTOR.findall(line))
            lines += [f"  {name} = {reads[name]};" for name in sorted(old)]
        if _BARRIER in line:
            stale = set(reads)
        lines.append(line)
    return "\n".join(lines) + "\n"


HOST_OBJECT, DEVICE_OBJECT = "host.o", "device.o"


def scheduled_by_default(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """The module as TVM would schedule it: the untuned default, because a kernel needs threads."""
    from tvm.s_tir import dlight  # nothing that a builder for CPUs should wait for

    with target:
        return dlight.ApplyDefaultSchedule(
            dlight.gpu.Matmul(),
            dlight.gpu.GEMV(),
            dlight.gpu.Reduction(),
            dlight.gpu.GeneralReduction(),
            dlight.gpu.Fallback(),
        )(mod.clone())  # it writes into the module that it is given


def build_archive(mod: tvm.IRModule, target: tvm.target.Target, compiler: CudaCompiler) -> bytes:
    """Compile a scheduled TIR module to an archive of two object files, the host's code and the GPU's.

    Raises TooLarge before anything is compiled when a kernel needs more than the target has, CompileFailed, and
    whatever TVM raises.
    """
    host, device = build_parts(mod, target, compiler)
    return pack({HOST_OBJECT: host, DEVICE_OBJECT: device_object(device, target)})


def build_parts(mod: tvm.IRModule, target: tvm.target.Target, compiler: CudaCompiler) -> tuple[bytes, bytes]:
    """The host's object file, and the pack of the kernels' machine code for `device_object`. Raises as `build_archive`,
    and FractuneError for a module without a kernel.
    """
    with target:
        library = _generate(with_identifiers(mod), target)
    if len(library.imports) != 1:  # one target, one module
        raise FractuneError("the schedule binds no loop to threads of the GPU: there is no kernel")
    arch, fast_math = str(target.attrs["arch"]), FAST_MATH in target.keys

    def compile_source(source: str) -> bytes:
        return compiler.compile(with_fresh_reads(source), arch, fast_math=fast_math)

    return written(library), embed_cubin(packed(library), library.imports[0].inspect_source("cuda"), compile_source)


def host_library(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """The library of a module that launches kernels of others, and has none."""
    with target:
        return _generate(mod, target)


def packed(library: Any) -> bytes:
    """The pack of all modules that a compiled library imports, and of the module itself if it is no library."""
    taken: bytes = tvm.get_global_func("runtime.ModulePackImportsToTensor")(library).numpy().tobytes()
    return taken


def device_object(pack: bytes, target: tvm.target.Target) -> bytes:
    """The object file that carries a pack."""
    as_object = tvm.get_global_func("codegen.codegen_blob")
    return written(as_object(pack, False, str(_host_of(target)), ""))  # noqa: FBT003  TVM's order


def _host_of(target: tvm.target.Target) -> tvm.target.Target:
    return tvm.target.Target(target.host or "llvm")


def _generate(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """`tvm.tirx.build`, with a look at the kernels between lowering and code generation."""
    host = _host_of(target)
    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    mod = tvm.tirx.transform.BindTarget(target.with_host(host))(mod)
    lower, finalize_host, finalize_device = tvm.tirx.get_default_tir_pipeline(target)
    on_host, on_devices = split_host_device_mods(lowered(mod, lower))
    kernels = {where: finalize_device()(each) for where, each in on_devices.items()}
    for each in kernels.values():
        check_limits(each, target)
    return tir_to_runtime(finalize_host()(on_host), kernels, host)
