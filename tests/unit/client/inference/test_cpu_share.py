"""The share that a process is under, read from a made-up /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fractune.inference.cpu.share import confine, cpu_quota, share_here
from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.shares import Share

V2_MOUNT = "30 23 0:26 {part} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "33 24 0:29 {part} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"


def a_host(
    root: Path, *, cpus: str = "0-3", cgroup: str = "0::/", mount: str = V2_MOUNT, part: str = "/", **quotas: str
) -> Path:
    """A file tree; `quotas` are contents by path with `__` for `/`, below /sys/fs/cgroup."""
    process = root / "proc/self"
    process.mkdir(parents=True)
    (process / "status").write_text(f"Name:\tpython\nCpus_allowed:\tf\nCpus_allowed_list:\t{cpus}\n")
    (process / "cgroup").write_text(cgroup + "\n")
    root_mount = "23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw"
    (process / "mountinfo").write_text(f"{root_mount}\n{mount.format(part=part)}\n")
    for name, text in quotas.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("cpu_max", "cpu.max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_without_a_quota_the_affinity_counts(tmp_path: Path) -> None:
    here = share_here(a_host(tmp_path, cpus="0-2,8,10-11", cpu_max="max 100000"))
    assert (here.units, here.cpus) == (6, (0, 1, 2, 8, 10, 11))
    assert here.reason == "6 cores by its affinity"


@pytest.mark.parametrize(
    ("quota", "units", "says"),
    [
        ("200000 100000", 2, "2 cores by the quota of its cgroup (its affinity has 4 cores)"),
        ("150000 100000", 1, "1.5 cores by the quota of its cgroup, taken as 1 (its affinity has 4 cores)"),
        ("50000 100000", 1, "0.5 cores by the quota of its cgroup, taken as 1 (its affinity has 4 cores)"),
        ("800000 100000", 4, "4 cores by its affinity"),
    ],
)
def test_a_quota_counts_whole_cores_and_at_least_one(tmp_path: Path, quota: str, units: int, says: str) -> None:
    here = share_here(a_host(tmp_path, cpu_max=quota))
    assert (here.units, here.cpus, here.reason) == (units, (0, 1, 2, 3), says)


def test_the_tightest_ancestor_limits(tmp_path: Path) -> None:
    root = a_host(
        tmp_path,
        cgroup="0::/kube/pod/box",
        kube__cpu_max="300000 100000",
        kube__pod__cpu_max="200000 100000",
        kube__pod__box__cpu_max="max 100000",
    )
    assert cpu_quota(root) == 2.0


def test_in_a_container_the_mount_is_the_process_s_own_cgroup(tmp_path: Path) -> None:
    root = a_host(tmp_path, cgroup="0::/docker/abc", part="/docker/abc", cpu_max="100000 100000")
    assert cpu_quota(root) == 1.0


def test_a_cgroup_outside_of_the_mount_reads_its_top(tmp_path: Path) -> None:
    root = a_host(tmp_path, cgroup="0::/../other", part="/mine", cpu_max="100000 100000")
    assert cpu_quota(root) == 1.0


@pytest.mark.parametrize(("quota_us", "cores"), [("250000", 2.5), ("-1", None), ("rubbish", None)])
def test_version_1_of_cgroups(tmp_path: Path, quota_us: str, cores: float | None) -> None:
    root = a_host(tmp_path, cgroup="4:cpu,cpuacct:/box\n5:memory:/box\n0::/", mount=V1_MOUNT)
    folder = root / "sys/fs/cgroup/cpu,cpuacct/box"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text(quota_us)
    (folder / "cpu.cfs_period_us").write_text("100000")
    assert cpu_quota(root) == cores


def test_a_system_that_tells_nothing_has_the_affinity_alone(tmp_path: Path) -> None:
    here = share_here(tmp_path)
    assert here.cpus == tuple(sorted(os.sched_getaffinity(0)))


def test_this_process() -> None:
    here = share_here()
    assert 1 <= here.units <= len(here.cpus)
    assert set(here.cpus) == os.sched_getaffinity(os.getpid())


def test_confining_takes_the_first_cpus_and_no_more_than_there_are() -> None:
    before = os.sched_getaffinity(0)
    try:
        confine(Share.parse("cpu:1"))
        assert os.sched_getaffinity(0) == {min(before)}
        with pytest.raises(ShareUnavailable, match=r"share 'cpu:2' is larger than the 1 core\(s\)"):
            confine(Share.parse("cpu:2"))
        with pytest.raises(BadRequest, match="not a CPU share"):
            confine(Share.parse("mps:25"))
    finally:
        os.sched_setaffinity(0, before)
