"""CUDA on this machine: compilers, the runtime library, the driver. Looking does not open a GPU."""

import ctypes
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fractune_core.cuda import PROGRAM, RUNTIME_SONAME, Toolkit, find_cudart, find_toolkits
from fractune_core.errors import FractuneError
from fractune_workers.cuda.compilers import Nvcc, compilers

_DRIVER, _NVML = "libcuda.so.1", "libnvidia-ml.so.1"
_PROC = Path("/proc/driver/nvidia")
_KERNEL_MODULE = re.compile(r"Kernel Module.*?\s([0-9]+\.[0-9.]+)")
LIBRARIES = {"nvidia-ml-py": ("pynvml", (13, 580)), "cuda-bindings": ("cuda.bindings.driver", (13, 0))}
"""By package: the module, and the oldest version that will do, as the extra `cuda` in pyproject.toml says"""

_IMPORT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class LibraryHere:
    """One of these packages on this machine."""

    package: str
    version: str
    """empty when it is not installed"""
    fault: str = ""
    """why it cannot be used; empty when it can"""


@dataclass(frozen=True)
class CompilerHere:
    """One CUDA compiler of this machine; an unusable one has a `fault`."""

    name: str
    """`NVRTC 13.0`"""
    archs: Sequence[int] = ()
    """compute capabilities that it compiles for"""
    fault: str = ""


@dataclass(frozen=True)
class CudaHere:
    """The findings; a field is empty where something is missing."""

    compilers: Sequence[CompilerHere]
    """the one that builds use first"""
    cudart: str
    """path of the CUDA runtime that TVM is linked with, or its name where the loader finds it"""
    driver: str
    """version of the kernel module: `580.65.06`"""
    driver_cuda: int
    """the newest CUDA that the driver's library serves, as 1000 * major + 10 * minor; 0 without a driver"""
    gpus: Sequence[str]
    """product names"""
    nvml: bool
    """NVML's own library, which comes with the driver"""
    libraries: Sequence[LibraryHere]
    """the packages that ask the driver and NVML"""
    mps_control: str
    """path of MPS's control program"""


def look_for_cuda() -> CudaHere:
    found = find_toolkits()
    return CudaHere(
        compilers=[*_compilers(found)],
        cudart=RUNTIME_SONAME if _loads(RUNTIME_SONAME) else str(find_cudart(found) or ""),
        driver=driver_version(_PROC),
        driver_cuda=_driver_cuda(),
        gpus=gpu_names(_PROC),
        nvml=_loads(_NVML),
        libraries=libraries(),
        mps_control=shutil.which(PROGRAM) or "",
    )


def driver_version(proc: Path) -> str:
    """Version of the kernel module, from the folder that it keeps in /proc; empty without one."""
    try:
        found = _KERNEL_MODULE.search((proc / "version").read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def gpu_names(proc: Path) -> list[str]:
    """Product names of the GPUs that the kernel module drives."""
    files = sorted(proc.glob("gpus/*/information"))
    lines = (line for path in files for line in path.read_text().splitlines())
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def _compilers(found: Sequence[Toolkit]) -> list[CompilerHere]:
    seen: list[CompilerHere] = []
    try:
        for compiler in compilers(found):
            fault = "" if not isinstance(compiler, Nvcc) or shutil.which("gcc") else "it needs a host compiler: gcc"
            seen.append(CompilerHere(compiler.name, compiler.archs, fault))
    except FractuneError as error:
        seen.append(CompilerHere("a CUDA compiler", fault=str(error)))
    return seen


def _driver_cuda() -> int:
    """Read without `cuInit`, which would open the GPU."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL(_DRIVER).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value


def _loads(soname: str) -> bool:
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True


def libraries() -> list[LibraryHere]:
    """The packages of LIBRARIES, each imported in a process of its own: this process must not load CUDA's driver."""
    return [_look(package, module, oldest) for package, (module, oldest) in LIBRARIES.items()]


def _look(package: str, module: str, oldest: tuple[int, ...]) -> LibraryHere:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return LibraryHere(package, "", "it is not installed")
    if tuple(int(number) for number in re.findall(r"\d+", version)[: len(oldest)]) < oldest:
        wanted = ".".join(str(number) for number in oldest)
        return LibraryHere(package, version, f"there is {version}, and {wanted} or newer is needed")
    complaint = _import_failure(module)
    fault = f"there is {version}, and {module} cannot be imported: {complaint}" if complaint else ""
    return LibraryHere(package, version, fault)


def _import_failure(module: str) -> str:
    """The error of importing the module; empty when it succeeds."""
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it takes more than {_IMPORT_TIMEOUT_S:g} s"
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"Python ended with code {done.returncode}"
