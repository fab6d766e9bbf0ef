"""A Triton candidate -> the same archive that a TVM candidate becomes. Neither a measurer nor a bundle needs Triton.

The host's code is TIR that calls the packed functions which TVM's CUDA runtime makes of the kernels. So stream, loading
and shared memory beyond 48 KiB are TVM's. TVM's own integration of Triton would need a driver.
"""

from typing import Any

import tvm
from tvm.script import from_source
from tvm.tirx import PrimFunc, decl_buffer

from fractune_workers.children.building.cuda import DEVICE_OBJECT, HOST_OBJECT, TooLarge, device_object, host_library
from fractune_workers.children.building.embed_cubin import INT32, INT64, POINTER, TENSOR_MAP, PackedKernel, pack_of
from fractune_workers.children.triton_kernels.attention.kernel_operators import kernel_operator
from fractune_workers.children.triton_kernels.compiler import Kernel, TensorMap, compile_source, shared_bytes_of
from fractune_workers.children.triton_kernels.decisions import element_bytes_of
from fractune_workers.children.triton_kernels.sources import Source, decisions_in
from fractune_workers.children.tvm_api.artifacts import pack
from fractune_workers.children.tvm_api.compiled import written

_SCRATCH = 2
"""pointers that Triton adds to the arguments of every kernel: to scratch memory and to a profile"""
_L2_128_BYTES = 2
"""what the second cache fetches at least for a tensor map, as Triton's launcher has it"""
_TAKES_PARTIALS = "fractune.takes_partials"
"""attribute of a function whose last parameter is memory for its partial sums"""


def build_triton_archive(mod: tvm.IRModule, target: tvm.target.Target, decisions: str) -> bytes:
    """Compile an operator's module by Triton to an archive of two object files, the host's code and the GPU's.

    Raises TooLarge when the kernel needs more shared memory than the target's block has, and whatever Triton raises.
    """
    host, device = build_triton_parts(mod["main"], "main", target, decisions)
    return pack({HOST_OBJECT: host, DEVICE_OBJECT: device_object(device, target)})


def build_triton_parts(function: Any, symbol: str, target: tvm.target.Target, decisions: str) -> tuple[bytes, bytes]:
    """As `building.cuda.build_parts`, of one operator. It takes its partial sums from the pool of its thread, but for a
    function of `with_room_for_partials`.
    """
    arch = str(target.attrs["arch"])
    plain = _without_room(function)
    operator = kernel_operator(plain, target)
    source = operator.source(decisions, f"{symbol}_kernel")
    dtypes = [str(each.ty.dtype) for each in plain.params]
    taken = [*dtypes, operator.sum_dtype] if source.partial_shape else dtypes
    kernels = compile_source(source, taken, arch)
    for kernel in kernels:
        _check_shared(kernel, shared_bytes_of(target))
    host = from_source(_host_text(function, symbol, source, kernels, taken))
    library = host_library(tvm.IRModule({symbol: host}), target)
    return written(library), pack_of({each.name: PackedKernel(each.cubin, _arguments(each, taken)) for each in kernels})


def _arguments(kernel: Kernel, dtypes: list[str]) -> list[str]:
    """As Triton lays them out: behind a tensor map come the argument's extents and strides."""
    maps = [
        kind
        for each in kernel.maps
        for kind in (TENSOR_MAP, *([INT32] * len(each.lengths)), *([INT64] * len(each.lengths)))
    ]
    return [*([POINTER] * len(dtypes)), *maps, *([POINTER] * _SCRATCH)]


def with_room_for_partials(function: Any, target: tvm.target.Target) -> Any:
    """A marked function, with a parameter for its partial sums behind its others if its decisions split the sums."""
    operator = kernel_operator(function, target)
    source = operator.source(decisions_in(function), "main")
    if not source.partial_shape:
        return function
    partials = decl_buffer(source.partial_shape, operator.sum_dtype, "partials")
    grown = PrimFunc([*function.params, partials], function.body, function.ret_type, function.attrs)
    return grown.with_attr(_TAKES_PARTIALS, True)  # noqa: FBT003  TVM's order


def _without_room(function: Any) -> Any:
    if not function.attrs or _TAKES_PARTIALS not in function.attrs:
        return function
    return PrimFunc(function.params[:-1], function.body, function.ret_type, function.attrs)


def _check_shared(kernel: Kernel, most_bytes: int) -> None:
    if kernel.shared_bytes > most_bytes:
        raise TooLarge(
            f"{kernel.name} needs {kernel.shared_bytes} bytes of shared memory per block; the target has {most_bytes}"
        )


def _host_text(function: Any, symbol: str, source: Source, kernels: list[Kernel], dtypes: list[str]) -> str:
    """TVMScript of a function with the operator's arguments, which launches the kernels."""
    shapes = [tuple(int(dim) for dim in each.ty.shape) for each in function.params]
    parameters = [
        f"p{at}: T.Buffer({shape}, '{dtype}')" for at, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
    ]
    lines = [f"T.func_attr({{'global_symbol': '{symbol}', 'tirx.noalias': True}})"]
    pointers = [f"p{at}.data" for at in range(len(shapes))]
    if len(dtypes) > len(shapes):
        lines.append(f"partials = T.alloc_buffer({source.partial_shape}, '{dtypes[-1]}')")
        pointers.append("partials.data")
    for launch, kernel in zip(source.launches, kernels, strict=True):
        taken = list(pointers)
        for each in kernel.maps:
            name = f"map{len(lines)}"
            lines += _encoding(name, each)
            taken += [name, *map(str, each.box.extents), *(f"T.int64({stride})" for stride in each.box.strides)]
        taken += ["T.reinterpret('handle', T.uint64(0))"] * _SCRATCH
        taken += [str(launch.programs), str(kernel.threads), str(kernel.shared_bytes)]
        lines.append(f"T.evaluate(T.call_packed('{kernel.name}', {', '.join(taken)}))")
    body = "\n    ".join(lines)
    return f"@T.prim_func(s_tir=True)\ndef main({', '.join(parameters)}):\n    {body}\n"


def _encoding(name: str, given: TensorMap) -> list[str]:
    """Lines that encode a tensor map on the host's stack, the innermost dimension first. A launch copies it, a captured
    one as well.
    """
    box, rank = given.box, len(given.lengths)
    strides = [stride * element_bytes_of(box.dtype) for stride in box.strides[:-1]]
    numbers = ", ".join(map(str, (*box.extents[::-1], *strides[::-1], *given.lengths[::-1], *([1] * rank))))
    options = f"descriptor_dtype='{box.dtype}', rank={rank}, swizzle={given.swizzle}, l2_promotion={_L2_128_BYTES}"
    return [
        f"{name}: T.let[T.handle('tensormap')] = T.tvm_stack_alloca('tensormap', 1)",
        f"T.evaluate(T.tensormap_encode_tiled({name}, p{box.argument}.data, {numbers}, {options}))",
    ]
