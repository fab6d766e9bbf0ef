"""CPU shares, proved in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.children.measuring.child import open_child
from fractune_workers.confinement import cpu as cpu_module
from fractune_workers.confinement.cpu import CpuConfinement, cgroup_cores

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


def test_more_cores_than_there_are() -> None:
    with pytest.raises(ShareUnavailable, match=rf"larger than this machine: {len(ALLOWED)} core"):
        CpuConfinement(Share.parse("cpu:9999")).probe()


def test_cores_that_do_not_fit_the_share() -> None:
    with pytest.raises(ShareUnavailable, match="are not 1 of the cores"):
        CpuConfinement(Share.parse("cpu:1"), [ALLOWED[0], 9999]).probe()


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has an NVIDIA driver")
@pytest.mark.parametrize("share", ["green:32", "mps:25", "full", "none"])
def test_a_cpu_is_never_measured_as_a_share_of_a_gpu(share: str) -> None:
    with pytest.raises(ShareUnavailable, match=r"NVIDIA|CUDA"):
        open_child([share, str(ALLOWED[0])])


@pytest.mark.parametrize(("text", "cores"), [("max 100000", None), ("150000 100000", 1.5), ("50000 100000", 0.5)])
def test_a_cgroup_quota_is_seen(
    text: str, cores: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    monkeypatch.setattr(cpu_module, "_CGROUP_QUOTAS", (quota, tmp_path / "none"))
    assert cgroup_cores() == cores
    confinement = CpuConfinement(Share.parse("cpu:1"))
    if cores is not None and cores < 1:
        with pytest.raises(ShareUnavailable, match=r"a cgroup caps this process at 0\.5"):
            confinement.probe()
    else:
        confinement.probe()


def test_an_old_cgroup_quota_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.cfs_quota_us").write_text("200000")
    (tmp_path / "cpu.cfs_period_us").write_text("100000")
    quotas = (tmp_path / "none", tmp_path / "cpu.cfs_quota_us")
    monkeypatch.setattr(cpu_module, "_CGROUP_QUOTAS", quotas)
    assert cgroup_cores() == 2.0
