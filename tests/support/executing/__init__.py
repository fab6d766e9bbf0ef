"""Kernels that compute without a GPU: TVM's CUDA C, compiled for the processor, and launched by TVM's CUDA runtime.

`executor.cc` says what a launch checks. It sees what the source says: neither NVIDIA's compiler, nor how tensor cores
round, nor kernels that are no source of TVM.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from fractune_workers.cuda.compilers import CompileFailed
from tests.support.hardware.launching_driver import stand_in

_FOLDER = Path(__file__).parent
MISSING = "" if shutil.which("g++") else "no g++ to compile kernels for the processor with"
ORDERS = ("forward", "backward", "shuffled")
"""of threads and blocks, as values of the environment's ORDER"""
_NVIDIA = re.compile(r"#include <(cuda\w*|mma|math_constants)\.h>")
_ASSEMBLY = re.compile(r"(?:asm volatile|__asm__ __volatile__)\((.*?)\);", re.DOTALL)
_DYNAMIC = re.compile(r"extern __shared__ __align__\(\d+\) uchar (\w+)\[\];")
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(')
# The mathematics of C++17 would take longer to read than a kernel to compile.
_OPTIONS = ("-std=gnu++14", "-O0", "-w", "-fPIC", "-shared", "-ffp-contract=off", "-fsanitize=thread")
_DEFINED = ("-D__CUDA_ARCH__=900", "-D__CUDACC_VER_MAJOR__=13", "-include", str(_FOLDER / "device.h"))
_LINKED = ("-nodefaultlibs", "-lstdc++", "-lm", "-lc")  # the sanitizer's functions are the executor's


class HostCompiler:
    """The processor's compiler, in place of CUDA's. `plant` changes the source: faults that must be seen."""

    name = "g++"
    archs = (75, 80, 86, 89, 90)

    def __init__(self, plant: Callable[[str], str] = str) -> None:
        self._plant = plant

    def compile(self, source: str, arch: str, *, fast_math: bool) -> bytes:
        """A shared library, which the executor loads as a cubin."""
        del arch, fast_math
        with tempfile.TemporaryDirectory(prefix="fractune-host-") as folder:
            path, out = Path(folder) / "kernels.cc", Path(folder) / "kernels.so"
            path.write_text(for_the_processor(self._plant(source)))
            command = ["g++", *_OPTIONS, *_DEFINED, "-o", str(out), str(path), *_LINKED]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CompileFailed(next(line for line in done.stderr.splitlines() if "error" in line))
            return out.read_bytes()


def for_the_processor(source: str) -> str:
    """CUDA C as C++ that `device.h` completes."""
    source = _NVIDIA.sub("", source)
    source = _ASSEMBLY.sub(lambda found: _as_call(found[1]), source)
    source = _DYNAMIC.sub(r"unsigned char *\1 = dynamic_memory();", source)
    kernels = dict.fromkeys(_KERNEL.findall(source))
    return source + "".join(f"\nKERNEL({name})" for name in kernels) + "\n"


def _as_call(assembly: str) -> str:
    if waited := re.search(r"cp\.async\.wait_group (\d+);", assembly):
        return f"wait_for_copies({waited[1]});"
    if "cp.async.commit_group" in assembly:
        return "commit_copies();"
    if copied := re.search(r'cp\.async\.c[ag]\.shared\.global.*"n"\((\d+)', assembly, re.DOTALL):
        copy = f"copy_async(dst_p, src_p, {copied[1]});"
        return f"if (predicate == 1) {copy} else memset(dst_p, 0, {copied[1]});" if "@!p" in assembly else copy
    raise CompileFailed(f"assembly that the executor does not know: {assembly.strip()[:100]}")


def executing_stand_in(folder: Path) -> None:
    """Make CUDA's libraries in the folder, for LD_LIBRARY_PATH: kernels of a HostCompiler compute."""
    stand_in(folder, str(_FOLDER / "executor.cc"))
