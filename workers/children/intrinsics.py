"""TVM's tensor intrinsics, only those of CPUs.

`tvm.s_tir.tensor_intrin` is imported by every builder and search, and its `__init__` parses hundreds of CUDA
intrinsics: 5 to 12 seconds of a child's start. A package of the same name that holds the CPU's modules alone,
registered before TVM asks for it, takes half a second.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import tvm.s_tir

_PACKAGE = "tvm.s_tir.tensor_intrin"
_CPU_MODULES = ("dot_product_common", "x86", "arm_cpu")


def load_cpu_intrinsics() -> None:
    """Register the CPU's intrinsics, and keep TVM from loading those of GPUs."""
    if _PACKAGE in sys.modules:
        return
    package = types.ModuleType(_PACKAGE, "Tensor intrinsics of CPUs.")
    package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
    sys.modules[_PACKAGE] = package
    for name in _CPU_MODULES:
        importlib.import_module(f"{_PACKAGE}.{name}")
