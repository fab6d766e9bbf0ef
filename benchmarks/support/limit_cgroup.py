"""A cgroup of version 1 with a CPU limit, for benchmarks under real limits."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fractune_core.cpu_limits import PERIOD_US
from fractune_core.host.cpus import cgroup_folders

_SHARES = 20_480
"""of CPU time against 1,024 of other programs, so that these disturb less"""


@contextmanager
def limit_cgroup(benchmark: str, name: str = "") -> Iterator[Path]:
    """A cgroup inside of this process's; it must be empty at the end of the block. Raises SystemExit without one."""
    own = next(cgroup_folders(), None)
    if own is None or (own / "cgroup.controllers").exists():
        raise SystemExit(f"{benchmark}: the controller cpu of cgroup v1 is not mounted here; run it where it is")
    folder = own / f"fractune-bench-{os.getpid()}{name}"
    try:
        folder.mkdir()
    except OSError as error:
        raise SystemExit(f"{benchmark}: cannot make {folder} ({error.strerror}); run it as root") from error
    try:
        (folder / "cpu.shares").write_text(str(_SHARES))
        yield folder
    finally:
        folder.rmdir()


def set_limit(cgroup: Path, limit_m: int) -> None:
    """In thousandths of a core, with the usual period."""
    (cgroup / "cpu.cfs_quota_us").write_text(str(limit_m * PERIOD_US // 1000))
