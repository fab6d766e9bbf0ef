"""The CUDA toolkit, wherever it is: the wheels of the extra `cuda`, a folder that CUDA_HOME names, the distribution's.

A toolkit is one folder with headers and libraries that belong together; parts of two are never mixed. Looking for it
needs neither a GPU nor a driver.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fractune_core.cuda.environment import TOOLKIT_HOMES

RUNTIME_SONAME = "libcudart.so.13"
"""the CUDA runtime that TVM's wheel is linked with"""

_SYSTEM_ROOTS = (Path("/usr/local/cuda"), Path("/usr"))
_LIBRARY_FOLDERS = ("lib", "lib64", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu")
_INCLUDE_FOLDERS = ("include", "targets/x86_64-linux/include")
_HEADERS = ("cuda_fp16.h", "mma.h", "crt/mma.h")
"""headers that TVM's code includes for half precision and for tensor cores; the others lie beside them"""


@dataclass(frozen=True)
class Toolkit:
    """Contents of one folder of a CUDA toolkit; None for a missing part."""

    nvrtc: Path | None = None
    """the library that compiles in memory and needs no other program"""
    nvcc: Path | None = None
    """the compiler driver, which needs a host compiler"""
    cudart: Path | None = None
    """the CUDA runtime of RUNTIME_SONAME, which measuring needs and building does not"""
    include: Path | None = None
    """the headers, if all are there that compiling by NVRTC needs"""


def toolkits(roots: Iterable[Path]) -> list[Toolkit]:
    """The toolkits in the folders, in their order; folders without any part are left out."""
    found = [_look_into(root) for root in dict.fromkeys(roots)]
    return [each for each in found if each.nvrtc or each.nvcc or each.cudart]


def toolkit_roots(environ: Mapping[str, str] = os.environ, path: Sequence[str] = tuple(sys.path)) -> list[Path]:
    """Where a toolkit may be, the most deliberate choice first: the environment, wheels, nvcc on PATH, the system."""
    named = [Path(environ[name]) for name in TOOLKIT_HOMES if environ.get(name)]
    return [*named, *_wheel_roots(path), *_root_of_nvcc(environ.get("PATH", "")), *_SYSTEM_ROOTS]


def find_toolkits() -> list[Toolkit]:
    """The toolkits of this machine, the first choice first."""
    return toolkits(toolkit_roots())


def find_cudart(found: Iterable[Toolkit]) -> Path | None:
    """The first CUDA runtime among the toolkits."""
    return next((toolkit.cudart for toolkit in found if toolkit.cudart), None)


def load_cudart() -> bool:
    """Load the CUDA runtime into this process, before TVM is imported: TVM's own library then finds it there.

    The dynamic loader does not look into wheels. False when there is none: then TVM has no CUDA devices.
    """
    return any(map(_loaded, (RUNTIME_SONAME, find_cudart(find_toolkits()))))


def runtime_version() -> str:
    """Of the CUDA runtime that this process has loaded or the loader finds: `13.0`; empty without one. Opens no GPU."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL(RUNTIME_SONAME).cudaRuntimeGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _loaded(library: str | Path | None) -> bool:
    if library is None:
        return False
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _wheel_roots(path: Iterable[str]) -> Iterator[Path]:
    """`nvidia/cu13` and its like, the newest version first: a namespace package that many wheels fill."""
    for entry in path:
        yield from sorted(Path(entry or ".").glob("nvidia/cu[0-9]*"), reverse=True)


def _root_of_nvcc(path: str) -> Iterator[Path]:
    nvcc = shutil.which("nvcc", path=path)
    if nvcc:
        yield Path(nvcc).resolve().parents[1]


def _look_into(root: Path) -> Toolkit:
    include = next((root / name for name in _INCLUDE_FOLDERS if _has_headers(root / name)), None)
    nvcc = root / "bin/nvcc"
    return Toolkit(
        nvrtc=_library(root, "libnvrtc.so.[0-9]*"),
        nvcc=nvcc if os.access(nvcc, os.X_OK) and nvcc.is_file() else None,
        cudart=_library(root, RUNTIME_SONAME),
        include=include,
    )


def _has_headers(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _HEADERS)


def _library(root: Path, pattern: str) -> Path | None:
    """The library of the shortest name, which is its soname: `libnvrtc.so.13`, not `libnvrtc.so.13.0.88`."""
    for folder in _LIBRARY_FOLDERS:
        found = sorted((root / folder).glob(pattern), key=lambda path: (len(path.name), path.name))
        if found:
            return found[0]
    return None
