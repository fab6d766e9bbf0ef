"""The children that compile, with the processor's compiler in place of CUDA's. `plant` has them build faults."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.gpu import faulty
from fractune_workers.child import Child
from fractune_workers.children.building import child as building
from fractune_workers.children.compiling import child as compiling
from fractune_workers.children.tvm_api import cuda_target
from tests.support.executing import HostCompiler

BUILDING, COMPILING, FAULTY = "building", "compiling", "faulty"
_CHILDREN = {BUILDING: building, COMPILING: compiling, FAULTY: faulty}


def in_place_of(module: str, args: Sequence[str] = (), **options: Any) -> Child:
    """A child like that of the module, with the processor's compiler. It has no sandbox: this compiler is a program,
    and a builder that compiles by NVRTC runs none.
    """
    options.pop("sandbox", None)
    (name,) = (name for name, each in _CHILDREN.items() if each.__name__ == module)
    return Child(__name__, [name, *args], **options)


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The methods of the child that the argument names, by default the builder's; and `plant`."""
    planted: list[Callable[[str], str]] = []

    def compiler_here() -> HostCompiler:
        return HostCompiler(*planted)

    def plant(pattern: str, replacement: str, place: int) -> None:
        """In kernels that are built from now on, replace the match of a regular expression at `place`; a kernel with
        fewer matches fails to build.
        """
        planted[:] = [lambda source: _with_fault(source, re.compile(pattern), replacement, place)]

    cuda_target.compiler_here = compiler_here  # type: ignore[assignment]
    return {**_CHILDREN[args[0] if args else BUILDING].open_child([]), "plant": plant}


def _with_fault(source: str, pattern: re.Pattern[str], replacement: str, place: int) -> str:
    begin = source.index('extern "C" __global__')
    match = list(pattern.finditer(source, begin))[place]
    return source[: match.start()] + match.expand(replacement) + source[match.end() :]
