"""Memory of this host, as far as this process may use it."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from fractune_core.host.cgroups import ROOT, cgroup_folders


def busy_s() -> float:
    """Of all programs and the kernel since the start of the machine, in seconds."""
    user, nice, system, _, _, irq, soft_irq, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft_irq) / os.sysconf("SC_CLK_TCK")


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """As Linux lists it in the file `cpuinfo`; empty where it lists none."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


MOUNTS = Path("/proc/self/mounts")
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3?|smbfs|9p|afs|ceph|glusterfs|lustre|gpfs|beegfs|ncpfs|ocfs2|gfs2|pvfs2|orangefs|davfs2?"
    r"|fuse\.(sshfs|rclone|s3fs|gcsfuse|glusterfs|ceph(-fuse)?|davfs2?|smbnetfs|juicefs|weed|moosefs|mfs|goofys|blobfuse2?)"
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def is_full(error: OSError) -> bool:
    """Whether the disk, or the user's quota of it, has no space left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def network_file_system(path: Path, mounts: Path | None = None) -> str | None:
    """The type of the network file system that holds `path`, such as `nfs4`, or None for a local file system. Also None
    if the table (`mounts`, by default the kernel's) cannot be read. The path need not exist.
    """
    try:
        lines = (mounts or MOUNTS).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    found = path.resolve()
    best, kind = -1, ""
    for line in lines:
        _, where, this_kind, *_ = line.split(" ")
        place = Path(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), where))
        # The last mount over a place hides the earlier ones.
        if found.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), this_kind
    return kind if _NETWORK.fullmatch(kind) else None


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
