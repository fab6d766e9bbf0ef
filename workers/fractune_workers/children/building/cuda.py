"""A scheduled TIR module -> host code and machine code for a GPU, on a machine without one.

TVM is kept from looking for a GPU (`stay_off_gpus`) and generates source. A CUDA compiler makes a cubin from the
source, for the architecture that the target names. Host object and cubin travel as one archive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.tirx.build import split_host_device_mods, tir_to_runtime

from fractune_core.errors import FractuneError
from fractune_core.targets import FAST_MATH
from fractune_workers.children.building.embed_cubin import embed_cubin
from fractune_workers.children.building.identifiers import with_identifiers
from fractune_workers.children.building.launch_limits import check_limits
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
    with target:
        library = _generate(with_identifiers(mod), target)
    compile_source = source_compiler(target, compiler)
    return pack({HOST_OBJECT: written(library), DEVICE_OBJECT: packed_imports(library, compile_source)})


def source_compiler(target: tvm.target.Target, compiler: CudaCompiler) -> Callable[[str], bytes]:
    """CUDA source -> cubin, as the target says."""
    arch, fast_math = str(target.attrs["arch"]), FAST_MATH in target.keys
    return lambda source: compiler.compile(source, arch, fast_math=fast_math)


def packed_imports(library: Any, compile_source: Callable[[str], bytes]) -> bytes:
    """An object file with all that the library imports; source among it has become machine code."""
    packed = tvm.get_global_func("runtime.ModulePackImportsToTensor")(library).numpy().tobytes()
    sources = [device.inspect_source("cuda") for device in _within(library, "cuda")]
    if len(sources) != 1:  # one target, one module
        raise FractuneError("the schedule binds no loop to threads of the GPU: there is no kernel")
    host = _within(library, "llvm")[0]["_get_target_string"]()
    as_object = tvm.get_global_func("codegen.codegen_blob")
    return written(as_object(embed_cubin(packed, sources[0], compile_source), False, host, ""))  # noqa: FBT003


def _within(library: Any, kind: str) -> list[Any]:
    """The modules of a kind in a library and in all that it imports."""
    deeper = [found for module in library.imports for found in _within(module, kind)]
    return [library, *deeper] if library.kind == kind else deeper


def _generate(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """`tvm.tirx.build`, with a look at the kernels between lowering and code generation."""
    host = tvm.target.Target(target.host or "llvm")
    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    mod = tvm.tirx.transform.BindTarget(target.with_host(host))(mod)
    lower, finalize_host, finalize_device = tvm.tirx.get_default_tir_pipeline(target)
    on_host, on_devices = split_host_device_mods(lower(mod))
    kernels = {where: finalize_device()(each) for where, each in on_devices.items()}
    for each in kernels.values():
        check_limits(each, target)
    return tir_to_runtime(finalize_host()(on_host), kernels, host)
