"""Limits that change while the files are open: a quota, the affinity, the cgroup; and a forked child."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fractune_core.host.cgroups import LimitFiles
from tests.support.hardware.cgroup_tree import a_host

_PODS = "sys/fs/cgroup/pods"


def a_pod(tmp_path: Path) -> Path:
    return a_host(tmp_path, cgroup="0::/pods/one", pods__cpu_max="max 100000", pods__one__cpu_max="50000 100000")


@pytest.mark.parametrize("cgroup", ["one", "."])
def test_a_new_quota_of_the_cgroup_and_of_one_above(tmp_path: Path, cgroup: str) -> None:
    root = a_pod(tmp_path)
    limits = LimitFiles(root)
    before = limits.read()
    assert limits.read() == before
    (root / _PODS / cgroup / "cpu.max").write_text("200000 100000\n")
    assert limits.read() != before


def test_a_new_affinity(tmp_path: Path, two_cpus: list[int]) -> None:
    limits = LimitFiles(a_pod(tmp_path))
    before = limits.read()
    os.sched_setaffinity(0, two_cpus[:1])
    assert limits.read() != before


def test_a_move_to_another_cgroup_is_followed(tmp_path: Path) -> None:
    root = a_pod(tmp_path)
    limits = LimitFiles(root)
    before = limits.read()
    (root / _PODS / "two").mkdir()
    (root / _PODS / "two/cpu.max").write_text("50000 100000\n")
    (root / "proc/self/cgroup").write_text("0::/pods/two\n")
    moved = limits.read()
    assert moved != before
    (root / _PODS / "two/cpu.max").write_text("70000 100000\n")
    assert limits.read() != moved


def test_a_system_without_cgroups(tmp_path: Path) -> None:
    limits = LimitFiles(tmp_path)
    assert limits.read() == limits.read()


def test_a_forked_child_opens_files_of_its_own(tmp_path: Path) -> None:
    limits = LimitFiles(a_pod(tmp_path))
    before, opened = limits.read(), limits._opened
    child = os.fork()
    if child == 0:
        os._exit(0 if limits.read() == before and limits._opened is not opened else 1)
    assert os.waitpid(child, 0)[1] == 0


def files_open_below(folder: Path) -> int:
    """Of this process: threads of other tests open and close files too."""
    places = (os.path.realpath(each) for each in Path("/proc/self/fd").iterdir())
    return sum(place.startswith(str(folder.resolve())) for place in places)


def test_few_files_stay_open(tmp_path: Path) -> None:
    root = a_pod(tmp_path)
    limits = LimitFiles(root)
    limits.read()
    before = files_open_below(root)
    assert before > 0
    for turn in range(9):
        (root / "proc/self/cgroup").write_text(f"0::/pods/one\n1:cpuset:/{turn}\n")
        limits.read()
    assert files_open_below(root) == before
