"""The packages that ask the driver and its management library: are they here, new enough, and do they load?"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from dataclasses import dataclass

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


def libraries() -> list[LibraryHere]:
    """All of them, imported in a process of its own each: the process that looks must not load CUDA's driver."""
    return [_look(package, module, oldest) for package, (module, oldest) in LIBRARIES.items()]


def _look(package: str, module: str, oldest: tuple[int, ...]) -> LibraryHere:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return LibraryHere(package, "", "it is not installed")
    if tuple(int(number) for number in re.findall(r"\d+", version)[: len(oldest)]) < oldest:
        wanted = ".".join(str(number) for number in oldest)
        return LibraryHere(package, version, f"there is {version}, and {wanted} or newer is needed")
    complaint = _complaint(module)
    fault = f"there is {version}, and {module} cannot be imported: {complaint}" if complaint else ""
    return LibraryHere(package, version, fault)


def _complaint(module: str) -> str:
    """What importing the module fails with; empty when it does not."""
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it takes more than {_IMPORT_TIMEOUT_S:g} s"
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"Python ended with code {done.returncode}"
