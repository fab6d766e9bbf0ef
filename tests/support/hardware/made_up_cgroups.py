"""Cgroups in a folder of plain files, which several processes share: each has a place of its own there."""

import os
import shutil
from pathlib import Path

from fractune_core.host.cpus import tightest_quota
from fractune_workers.confinement.burn import Burn
from fractune_workers.confinement.limit_cgroups import LimitCgroups
from tests.support.hardware.cgroup_tree import V2_MOUNT


class MadeUpCgroups(LimitCgroups):
    """Version 2. What the kernel would do when such files are written is done here."""

    def join(self, folder: Path) -> None:
        super().join(folder)
        place = folder.resolve().relative_to((self.root / "sys/fs/cgroup").resolve())
        (self.root / "proc/self/cgroup").write_text(f"0::/{'' if str(place) == '.' else place}\n")

    def burned(self, processes: int, _settle_s: float, _measure_s: float) -> Burn:
        quota = tightest_quota(self.root)
        return Burn(min(processes, quota.cores) if quota else float(processes), ())

    def _rmdir(self, folder: Path) -> None:
        shutil.rmtree(folder)


def made_up_cgroups(shared: Path) -> MadeUpCgroups:
    """The cgroups in `shared` as this process sees them; it begins in the topmost one."""
    root = shared / str(os.getpid())
    files = shared / "sys/fs/cgroup"
    files.mkdir(parents=True, exist_ok=True)
    for name, text in {"cgroup.controllers": "cpu memory", "cgroup.subtree_control": "", "cgroup.procs": ""}.items():
        if not (files / name).exists():
            (files / name).write_text(text)
    if not root.exists():
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text(V2_MOUNT.format(part="/") + "\n")
        (root / "proc/self/cgroup").write_text("0::/\n")
        (root / "sys").symlink_to(shared / "sys")
    return MadeUpCgroups(root)


def left_by_a_killed_process(cgroups: MadeUpCgroups) -> Path:
    """A cgroup whose name has this process's id, and an earlier start."""
    folder = cgroups.root / f"sys/fs/cgroup/fractune-limit-{os.getpid()}-0-0"
    folder.mkdir()
    return folder
