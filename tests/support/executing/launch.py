"""Launches kernels of CUDA C that a test has written, on the executor. A program, as `run.py`."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.executing import ORDERS, HostCompiler
from tests.support.hardware.over_stand_ins import environ_over

SIZE = 64
"""numbers in the one argument of a kernel, an array of float32 that holds 0, 1, 2, ..."""


@dataclass(frozen=True)
class Written:
    """A kernel with the name `kernel`, and its launch."""

    source: str
    threads: int = SIZE
    blocks: int = 1
    shared: int = 0


def launched(libraries: Path, kernels: Mapping[str, Written]) -> dict[tuple[str, str], tuple[str, list[float]]]:
    """By name and order of the threads: the text of the error, empty without one, and the array."""
    given = json.dumps({name: asdict(each) for name, each in kernels.items()})
    command = [sys.executable, "-m", "tests.support.executing.launch"]
    environ = environ_over(libraries)
    done = subprocess.run(command, input=given, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {(name, order): (error, numbers) for name, order, error, numbers in json.loads(done.stdout)}


class _Launch(ctypes.Structure):
    """CUlaunchConfig"""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


def _loaded(driver: Any, kernels: Sequence[Written]) -> list[ctypes.c_void_p]:
    """Compiled in one source, where each kernel has a name and line numbers of its own."""
    sources = (each.source.replace("kernel(", f"kernel{at}(") for at, each in enumerate(kernels))
    image = HostCompiler().compile("".join(f"#line 1\n{each}\n" for each in sources), "sm_90", fast_math=False)
    module, functions = ctypes.c_void_p(), [ctypes.c_void_p() for _ in kernels]
    assert driver.cuModuleLoadData(ctypes.byref(module), image) == 0
    for at, function in enumerate(functions):
        assert driver.cuModuleGetFunction(ctypes.byref(function), module, f"kernel{at}".encode()) == 0
    return functions


def _launch(driver: Any, runtime: Any, function: ctypes.c_void_p, written: Written) -> tuple[str, list[float]]:
    memory, text = ctypes.c_void_p(), ctypes.c_char_p()
    numbers = np.arange(SIZE, dtype="float32")
    assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(numbers.nbytes)) == 0
    ctypes.memmove(memory, numbers.ctypes.data, numbers.nbytes)
    launch = _Launch((written.blocks, 1, 1), (written.threads, 1, 1), written.shared)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    code = driver.cuLaunchKernelEx(ctypes.byref(launch), function, arguments, None)
    driver.cuGetErrorString(code, ctypes.byref(text))
    ctypes.memmove(numbers.ctypes.data, memory, numbers.nbytes)
    runtime.cudaFree(memory)
    return (text.value or b"").decode() if code else "", numbers.tolist()


def _main() -> None:
    driver, runtime = (ctypes.CDLL(name, ctypes.RTLD_GLOBAL) for name in ("libcuda.so.1", "libcudart.so.13"))
    kernels = {name: Written(**given) for name, given in json.load(sys.stdin).items()}
    found = []
    for (name, written), function in zip(kernels.items(), _loaded(driver, [*kernels.values()]), strict=True):
        for order in ORDERS:
            os.environ["ORDER"] = order
            found.append([name, order, *_launch(driver, runtime, function, written)])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main()
