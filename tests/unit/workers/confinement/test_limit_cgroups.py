"""Child cgroups with a limit, in made-up trees of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from fractune_core.cpu_limits import LimitSize
from fractune_workers.confinement.limit_cgroups import LimitCgroups
from tests.support.hardware.cgroup_tree import V1_MOUNT, a_host
from tests.support.hardware.made_up_cgroups import left_by_a_killed_process, made_up_cgroups

SIZE = LimitSize(1500, request_m=500)


def v2_cgroup(root: Path, place: str, controllers: str = "cpu memory", *, top: bool = False) -> Path:
    """A made-up host whose process is in the cgroup `place`."""
    a_host(root, cgroup=f"0::/{place}")
    folder = root / "sys/fs/cgroup" / place
    folder.mkdir(parents=True)
    files = {"cgroup.controllers": controllers, "cgroup.subtree_control": "", "cgroup.procs": "7\n"}
    for name, text in files.items() if top else {**files, "cgroup.type": "domain"}.items():
        (folder / name).write_text(text)
    return folder


def test_version_1(tmp_path: Path) -> None:
    root = a_host(tmp_path, cgroup="4:cpu,cpuacct:/box\n0::/", mount=V1_MOUNT)
    box = root / "sys/fs/cgroup/cpu,cpuacct/box"
    box.mkdir(parents=True)
    (box / "cpu.shares").write_text("1024\n")
    cgroups = LimitCgroups(root)
    assert (cgroups.lacks(), cgroups.weight()) == ("", 1024)
    folder = cgroups.make(SIZE)
    assert folder.parent == box
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
        "cpu.shares": "512",
    }


def test_in_version_2_the_processes_of_the_cgroup_move_to_a_leaf(tmp_path: Path) -> None:
    box = v2_cgroup(tmp_path, "box")
    folder = LimitCgroups(tmp_path).make(SIZE)
    assert folder.parent == box
    assert sorted(path.name for path in folder.iterdir()) == ["cpu.max", "cpu.weight"]
    assert ((folder / "cpu.max").read_text(), (folder / "cpu.weight").read_text()) == ("150000 100000", "20")
    assert (box / "fractune-rest/cgroup.procs").read_text() == "7"
    assert (box / "cgroup.subtree_control").read_text() == "+cpu"


def test_from_the_leaf_the_next_one_is_made_beside_it(tmp_path: Path) -> None:
    box = v2_cgroup(tmp_path, "box")
    first = LimitCgroups(tmp_path).make(SIZE)
    leaf = box / "fractune-rest"
    for name in ("cgroup.controllers", "cgroup.subtree_control"):
        (leaf / name).write_text("cpu" if name == "cgroup.controllers" else "")
    (tmp_path / "proc/self/cgroup").write_text("0::/box/fractune-rest\n")
    second = LimitCgroups(tmp_path).make(SIZE)
    assert (second.parent, second.name == first.name) == (box, False)


def test_the_topmost_cgroup_of_version_2_keeps_its_processes(tmp_path: Path) -> None:
    top = v2_cgroup(tmp_path, "", top=True)
    LimitCgroups(tmp_path).make(LimitSize(500))
    assert not (top / "fractune-rest").exists()
    assert (top / "cgroup.subtree_control").read_text() == "+cpu"


def test_without_a_request_the_weight_is_the_kernel_s(tmp_path: Path) -> None:
    v2_cgroup(tmp_path, "box")
    assert [path.name for path in LimitCgroups(tmp_path).make(LimitSize(500)).iterdir()] == ["cpu.max"]


@pytest.mark.parametrize(
    ("controllers", "without", "says"),
    [("memory", "", "box has no CPU controller"), ("cpu", "cgroup.procs", "cgroup.procs cannot be changed")],
)
def test_where_no_cgroup_can_be_made(tmp_path: Path, controllers: str, without: str, says: str) -> None:
    box = v2_cgroup(tmp_path, "box", controllers)
    if without:
        (box / without).unlink()
    assert LimitCgroups(tmp_path).lacks().endswith(says)


def test_a_host_without_cgroups(tmp_path: Path) -> None:
    assert LimitCgroups(tmp_path).lacks() == "no cgroup for CPUs was found"


def test_only_the_cgroups_of_dead_processes_are_removed(tmp_path: Path) -> None:
    cgroups = made_up_cgroups(tmp_path)
    alive = cgroups.make(SIZE)
    same_number_again = left_by_a_killed_process(cgroups)
    other = alive.with_name("fractune-limit-of-somebody-else")
    other.mkdir()
    cgroups.remove_dead()
    assert (alive.exists(), same_number_again.exists(), other.exists()) == (True, False, True)
    cgroups.remove(alive)
    assert not alive.exists()
    cgroups.remove(alive)  # gone already
