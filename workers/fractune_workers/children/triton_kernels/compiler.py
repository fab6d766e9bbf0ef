"""Triton's compiler, without a driver: a module's text becomes machine code, in a process that may end then."""

import functools
import importlib.metadata
import importlib.util
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fractune_core.errors import FractuneError
from fractune_core.targets import TF32, capability
from fractune_workers.children.triton_kernels.decisions import Problem
from fractune_workers.children.triton_kernels.sources import Box, Launch, Source, has_boxes
from fractune_workers.children.triton_kernels.sums import Sums
from fractune_workers.children.tvm_api.cuda_target import shared_bytes_at_launch

_ARCHS = (80, 86, 89, 90, 100, 103, 120)
_WITH_TMA = 90


def is_known(target: Any) -> bool:
    """Whether Triton compiles for the target. From 9.0 on, its code is for one capability (`sm_90a`)."""
    return target.kind.name == "cuda" and capability(str(target.attrs["arch"])) in _ARCHS


def precision_of(target: Any) -> str:
    """Of products in float32: Triton's `dot` would take TensorFloat-32 by itself."""
    return TF32 if TF32 in target.keys else "ieee"


def has_tensor_cores(dtype: str, target: Any) -> bool:
    """Whether products of the type are computed there."""
    return dtype != "float32" or precision_of(target) == TF32


def problem_of(sums: Sums, target: Any) -> Problem:
    return Problem(
        batch=sums.extent("batch"),
        row=sums.extent("row"),
        column=sums.extent("column"),
        depth=sums.extent("depth"),
        dtype=sums.dtype,
        tensor_cores=has_tensor_cores(sums.dtype, target),
        shared_bytes=shared_bytes_of(target),
        tma=(capability(str(target.attrs["arch"])) or 0) >= _WITH_TMA and has_boxes(sums),
    )


def shared_bytes_of(target: Any) -> int:
    """Shared memory that a block may request."""
    return shared_bytes_at_launch(str(target.attrs["arch"]), int(target.attrs["max_shared_memory_per_block"]))


VERSION = "3.9.0"
"""The one that the extra `triton` requires. Kernels and their compilation use parts that other versions lack."""
INSTALL = "pip install 'fractune[triton]'"
_POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64", "bool": "*i1"}
_POINTERS |= {
    f"{sign}int{bits}": f"*{short}{bits}" for sign, short in (("", "i"), ("u", "u")) for bits in (8, 16, 32, 64)
}
_ALIGNED = [["tt.divisibility", 16]]
"""TVM aligns tensors to 64 bytes. Without the hint a GPU copies nothing asynchronously into shared memory."""
_MODULE = "fractune_generated"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TensorMap:
    """How the copy engine takes tiles of a box. The host encodes it at each launch."""

    box: Box
    lengths: tuple[int, ...]
    """of one copy; a long tile takes several"""
    swizzle: int
    """of the copy in shared memory, as CUDA numbers them"""


@dataclass(frozen=True)
class Kernel:
    """Machine code, and what its launch requests."""

    name: str
    cubin: bytes
    threads: int
    shared_bytes: int
    maps: tuple[TensorMap, ...]
    """that it takes behind its pointers"""


def is_installed() -> bool:
    """Whether the one version is there. Another version is skipped, and the log says so once."""
    found = _version()
    if found not in ("", VERSION):
        _warn_of(found)
    return found == VERSION


def _version() -> str:
    """Empty where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        return ""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


@functools.cache
def _warn_of(version: str) -> None:
    _log.warning("Triton %s is skipped: its kernels need Triton %s; %s", version, VERSION, INSTALL)


def load_triton() -> str:
    """Load the compiler, and return its name with its version. Raises FractuneError without it."""
    if not is_installed():
        has = f"has Triton {found}" if (found := _version()) else "has no Triton"
        raise FractuneError(f"this machine {has}, and the candidate is built with Triton {VERSION}; {INSTALL}")
    import triton
    import triton.compiler

    return f"Triton {triton.__version__}"


def load_module(text: str, folder: Path) -> ModuleType:
    """A generated module. Triton reads its source, so that it lies in a file."""
    path = folder / f"{_MODULE}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise FractuneError(f"{path} cannot be imported; report this")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_source(source: Source, dtypes: Sequence[str], arch: str) -> list[Kernel]:
    """The machine code of each kernel of a module. `dtypes` are those of the pointers.

    Raises whatever Triton raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        module = load_module(source.text, Path(folder))
        return [_compiled(getattr(module, launch.kernel), launch, dtypes, arch) for launch in source.launches]


def _compiled(function: Any, launch: Launch, dtypes: Sequence[str], arch: str) -> Kernel:
    """As `triton.compile`, without its cache: no candidate is compiled twice, and where models are read no file can be
    moved from one folder to another.
    """
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget, Language
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    types = [*(_POINTERS[dtype] for dtype in dtypes), *map(_descriptor_type, launch.boxes)]
    signature = dict(zip(function.arg_names, types, strict=True))
    source = ASTSource(function, signature, attrs={(at,): _ALIGNED for at in range(len(dtypes))})
    target = GPUTarget("cuda", capability(arch), 32)
    backend = make_backend(target)
    # Without fused multiply-add a product without tensor cores takes twice as many instructions.
    given = {"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": True}
    options = backend.parse_options(given)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, Language.TRITON)
    made = {"target": target, **vars(options)}
    functions = backend.get_codegen_implementation(options)
    code = source.make_ir(target, options, functions, backend.get_module_map(), context)
    for stage in stages.values():
        code = stage(code, made)
    if made["global_scratch_size"] or made["profile_scratch_size"]:
        raise FractuneError("the kernel needs scratch memory on the device; only kernels without it are launched")
    maps = _tensor_maps(launch.boxes, made["tensordesc_meta"])
    return Kernel(made["name"], code, 32 * made["num_warps"], made["shared"], maps)


def _descriptor_type(box: Box) -> str:
    return f"tensordesc<{_POINTERS[box.dtype].removeprefix('*')}[{','.join(map(str, box.lengths))}]>"


def _tensor_maps(boxes: Sequence[Box], made: Sequence[dict[str, Any]]) -> tuple[TensorMap, ...]:
    if len(boxes) != len(made):
        raise FractuneError("this GPU has no copy engine for the candidate (TMA); tune the model for it again")
    return tuple(
        TensorMap(box, tuple(each["block_size"]), each["swizzle"]) for box, each in zip(boxes, made, strict=True)
    )
