"""Memory and busy cores of this host, as far as they concern this process."""

import errno
import os
import re
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

from fractune_core.host.cpus import ROOT, cgroup_folders

_T = TypeVar("_T")
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")


def busy_s(cores: Iterable[int] = ()) -> float:
    """Of all programs, the kernel and the hypervisor since the start of the machine, in seconds; on some `cores`, by
    default on all.
    """
    wanted = {f"cpu{core}" for core in cores} or {"cpu"}
    found = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *columns = line.split()
        if name in wanted:
            user, nice, system, _, _, irq, soft_irq, steal = map(int, columns[:8])
            found += user + nice + system + irq + soft_irq + steal
    return found / os.sysconf("SC_CLK_TCK")


def beside_others(
    run: Callable[[], _T], cores: Collection[int], own_s: Callable[[], float] = time.process_time
) -> tuple[_T, float]:
    """The result of `run`, and how many of the `cores` others had meanwhile, on average. `own_s`: the CPU time so far
    that is no other's, in seconds; by default that of this process.
    """
    began_s, others_s = time.perf_counter(), own_s() - busy_s(cores)
    found = run()
    others_s += busy_s(cores) - own_s()
    return found, max(0.0, others_s / (time.perf_counter() - began_s))


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


def l2_kib() -> int:
    """Size of the second-level cache of one core in KiB; 0 when the system does not tell."""
    return _cache_kib(_CACHE).get("2", 0)


def last_cache_bytes() -> int:
    """Size of the whole last-level cache, shared or not; 0 when the system does not show it."""
    return max(_cache_kib(_CACHE).values(), default=0) * 1024


def _cache_kib(cache: Path) -> dict[str, int]:
    """Sizes of the caches of one core in KiB, by level; those that the system does not tell are absent."""
    sizes: dict[str, int] = {}
    for index in sorted(cache.glob("index*")):
        try:
            level, size = (index / "level").read_text().strip(), (index / "size").read_text().strip()
        except OSError:
            continue
        sizes[level] = int(size.rstrip("KM")) * (1024 if size.endswith("M") else 1)
    return sizes
