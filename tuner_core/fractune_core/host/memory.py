"""Memory of this host, as far as this process may use it."""

from __future__ import annotations

import os
from pathlib import Path

from fractune_core.host.cgroups import ROOT, cgroup_folders

_LIMITS = ("memory.max", "memory.limit_in_bytes")
"""of version 2 and version 1 of cgroups"""

_MODEL_SHARE = 0.4
"""of the host's memory: the two compile workers of the one-machine stack leave a fifth"""
_FEWEST_MODEL_BYTES = 4 << 30
"""TVM, NumPy and ONNX address 0.7 GiB before they read a model, and with PyTorch's build for CPUs 1.1"""


def model_memory_bytes(limit_bytes: int | None = None) -> int:
    """The memory limit of one process that works on a model: `limit_bytes`, or by default a share of this host's."""
    if limit_bytes is not None:
        return limit_bytes
    usable = usable_memory_bytes()
    return max(int(_MODEL_SHARE * usable), min(_FEWEST_MODEL_BYTES, usable))


def host_memory_bytes() -> int:
    """All of the host's memory, whatever this process may use."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def usable_memory_bytes(root: Path = ROOT) -> int:
    """The host's memory, or the least that this process's cgroup and its ancestors allow."""
    found = [host_memory_bytes()]
    for folder in cgroup_folders(root, "memory"):
        for name in _LIMITS:
            try:
                found.append(int((folder / name).read_text()))
            except (OSError, ValueError):  # not there, or "max"
                continue
    return min(found)
