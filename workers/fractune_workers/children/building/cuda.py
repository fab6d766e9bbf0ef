"""A scheduled TIR module -> host code and machine code for a GPU, on a machine without one.

TVM is kept from looking for a GPU (`stay_off_gpus`) and generates source. A CUDA compiler makes a cubin from the
source, for the architecture that the target names. Host object and cubin travel as one archive.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.tirx.build import split_host_device_mods, tir_to_runtime

from fractune_core.errors import FractuneError
from fractune_core.targets import FAST_MATH
from fractune_workers.children.building.embed_cubin import embed_cubin
from fractune_workers.children.building.identifiers import with_identifiers
from fractune_workers.children.building.launch_limits import check_limits
from fractune_workers.children.building.lowering import lowered
from fractune_workers.children.tvm_api.artifacts import pack, written
from fractune_workers.cuda.compilers import CudaCompiler

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
        return compiler.compile(source, arch, fast_math=fast_math)

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
