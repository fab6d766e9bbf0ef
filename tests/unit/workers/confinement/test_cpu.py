"""CPU shares, proved in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.children.measuring.child import open_child
from fractune_workers.confinement.cpu import CpuConfinement
from tests.support.hardware.cgroup_tree import a_host
from tests.support.hardware.cpu_tree import cpus_of
from tests.support.hardware.real_cgroup import capped_cgroup

ALLOWED = sorted(os.sched_getaffinity(0))


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_entering_confines_and_verifying_tells_what_was_granted() -> None:
    code = f"""
import os, threading
from fractune_core.shares import Share
from fractune_workers.confinement.cpu import CpuConfinement
c = CpuConfinement(Share.parse("cpu:1"), [{ALLOWED[-1]}])
c.enter()
thread = threading.Thread(target=threading.Event().wait, daemon=True); thread.start()
g = c.verify()
print(sorted(os.sched_getaffinity(0)), g.units, g.units_total == os.cpu_count(), g.ids)
c.leave()
print(sorted(os.sched_getaffinity(0)))
"""
    assert run(code).splitlines() == [f"[{ALLOWED[-1]}] 1 True ({ALLOWED[-1]},)", str(ALLOWED)]


@pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two cores to stray")
def test_a_thread_that_strays_is_found() -> None:
    code = f"""
import os, threading
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.confinement.cpu import CpuConfinement
c = CpuConfinement(Share.parse("cpu:1"), [{ALLOWED[0]}])
c.enter()
ready, stay = threading.Event(), threading.Event()
def stray():
    os.sched_setaffinity(0, {ALLOWED}); ready.set(); stay.wait()
threading.Thread(target=stray, daemon=True).start(); ready.wait()
try:
    c.verify()
except ShareUnavailable as error:
    print(error)
"""
    assert "cannot be verified" in run(code)


@pytest.mark.skipif(len(ALLOWED) < 2, reason="needs two CPUs")
def test_a_grant_tells_its_physical_cores(tmp_path: Path) -> None:
    first, second = ALLOWED[:2]
    apart, shared = cpus_of(tmp_path / "apart", str(first)), cpus_of(tmp_path / "shared", f"{first},{second}")
    code = f"""
from pathlib import Path
from fractune_core.shares import Share
from fractune_workers.confinement.cpu import CpuConfinement
for root in ({str(apart)!r}, {str(shared)!r}):
    confinement = CpuConfinement(Share.parse("cpu:2"), [{first}, {second}], Path(root))
    confinement.enter()
    print(confinement.verify().physical_cores)
"""
    assert run(code).split() == ["2", "1"]


def test_more_cores_than_there_are() -> None:
    with pytest.raises(ShareUnavailable, match=rf"larger than this machine: {len(ALLOWED)} core"):
        CpuConfinement(Share.parse("cpu:9999")).probe()


@pytest.mark.skipif(len(ALLOWED) >= 500, reason="this machine has so many cores")
def test_a_limit_without_its_unit_is_recognized() -> None:
    with pytest.raises(ShareUnavailable, match=r"at most, or write the CPU limit cpu:500m$"):
        CpuConfinement(Share.parse("cpu:500")).probe()


def test_cores_that_do_not_fit_the_share() -> None:
    with pytest.raises(ShareUnavailable, match="are not 1 of the cores"):
        CpuConfinement(Share.parse("cpu:1"), [ALLOWED[0], 9999]).probe()


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has an NVIDIA driver")
@pytest.mark.parametrize("share", ["green:32", "mps:25", "full", "none"])
def test_a_cpu_is_never_measured_as_a_share_of_a_gpu(share: str) -> None:
    with pytest.raises(ShareUnavailable, match=r"NVIDIA|CUDA"):
        open_child([share, str(ALLOWED[0])])


def test_a_quota_on_the_slice_around_a_measurer_is_seen(tmp_path: Path) -> None:
    root = a_host(
        tmp_path,
        cgroup="0::/slice/worker",
        slice__cpu_max="150000 100000",
        slice__worker__cpu_max="max 100000",
    )
    CpuConfinement(Share.parse("cpu:1"), root=root).probe()
    two = CpuConfinement(Share.parse("cpu:2"), root=root)
    with pytest.raises(ShareUnavailable, match=r"larger than this machine|caps this process at 1\.5 core"):
        two.probe()


@pytest.mark.parametrize("quota", ["50000 100000", "90000 100000"])
def test_less_than_one_core_is_no_share(tmp_path: Path, quota: str) -> None:
    root = a_host(tmp_path, cgroup="0::/slice/worker", slice__cpu_max=quota)
    with pytest.raises(ShareUnavailable, match=r"caps this process at 0\.[59] core.*, or run this outside"):
        CpuConfinement(Share.parse("cpu:1"), root=root).probe()


def test_in_a_real_cgroup_with_half_a_core_no_share_is_proved() -> None:
    code = """
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.confinement.cpu import CpuConfinement
try:
    CpuConfinement(Share.parse("cpu:1")).enter()
except ShareUnavailable as error:
    print(error)
"""
    with capped_cgroup(cores=0.5) as cgroup:
        assert "caps this process at 0.5 cores; raise" in cgroup.run(code)
