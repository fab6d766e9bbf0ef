"""The packages that ask the driver and its management library: are they here, new enough, and do they load?"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from dataclasses import dataclass

LIBRARIES = {"nvidia-ml-py": ("pynvml", (13, 580)), "cuda-bindings": ("cuda.bindings.driver", (13, 0))}
"""By package: the module, and the oldest version that will do, as the extra `cuda` in pyproject.toml says"""


@dataclass(frozen=True)
class LibraryHere:
    """One of these packages on this machine."""

    package: str
    version: str
    """empty when it is not installed"""
    fault: str = ""
    """why it cannot be used; empty when it can"""


def libraries() -> list[LibraryHere]:
    """All of them. Importing them opens neither the driver nor a GPU."""
    return [_look(package, module, oldest) for package, (module, oldest) in LIBRARIES.items()]


def _look(package: str, module: str, oldest: tuple[int, ...]) -> LibraryHere:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return LibraryHere(package, "", "it is not installed")
    if tuple(int(number) for number in re.findall(r"\d+", version)[: len(oldest)]) < oldest:
        wanted = ".".join(str(number) for number in oldest)
        return LibraryHere(package, version, f"there is {version}, and {wanted} or newer is needed")
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # built for another Python, or without what it links to
        return LibraryHere(package, version, f"there is {version}, and {module} cannot be imported: {error}")
    return LibraryHere(package, version)
