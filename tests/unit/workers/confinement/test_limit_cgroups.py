"""Child cgroups with a limit, in made-up trees of both versions."""

import os
from pathlib import Path

import pytest

from fractune_core.cpu_limits import LimitSize
from fractune_workers.confinement.limit_cgroups import LimitCgroups, SystemdScope
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


def a_program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """The stand-in is all that the PATH has beside the shell's own folders."""
    program = folder / "systemd-run"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin")


@pytest.mark.parametrize(
    ("size", "weight", "settings"),
    [
        ("500m", "", "-p CPUQuota=50%"),
        ("1255m@2/10ms", "", "-p CPUQuota=125.5% -p CPUQuotaPeriodSec=10ms"),
        ("250m..500m", "CPUWeight=10", "-p CPUQuota=50% -p CPUWeight=10"),
    ],
)
@pytest.mark.parametrize(("user", "manager"), [(0, ""), (1000, "--user ")])
def test_the_command_has_the_limit(
    monkeypatch: pytest.MonkeyPatch, size: str, weight: str, settings: str, user: int, manager: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    command = SystemdScope(LimitSize.parse(size), weight).command
    assert " ".join(command) == f"systemd-run {manager}--scope --quiet {settings} --"


@pytest.mark.parametrize(
    ("cgroup", "mount", "file", "weight"),
    [("0::/", None, "cpu.weight", "CPUWeight=10"), ("4:cpu:/", V1_MOUNT, "cpu.shares", "CPUShares=256")],
)
def test_a_request_has_the_weight_of_its_version(
    tmp_path: Path, cgroup: str, mount: str | None, file: str, weight: str
) -> None:
    root = a_host(tmp_path, cgroup=cgroup, **({"mount": mount} if mount else {}))
    folder = root / ("sys/fs/cgroup/cpu,cpuacct" if mount else "sys/fs/cgroup")
    folder.mkdir(parents=True)
    (folder / file).write_text("100")
    (folder / "cgroup.controllers").write_text("cpu")
    assert LimitCgroups(root).systemd_weight(250) == weight


def test_a_scope_is_tried_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = SystemdScope(LimitSize.parse("500m"))
    a_program(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/tried')
    assert scope.lacks() == ""
    assert (tmp_path / "tried").read_text().split()[-2:] == ["--", "true"]
    a_program(tmp_path, monkeypatch, "echo 'Failed to connect to bus:\nNo medium found' >&2; exit 1")
    assert scope.lacks() == "systemd-run refuses (Failed to connect to bus: No medium found)"
    a_program(tmp_path, monkeypatch, r"printf 'no\374 \033[31m' >&2; exit 1")
    assert scope.lacks() == "systemd-run refuses (no\ufffd \\x1b[31m)"
    a_program(tmp_path, monkeypatch, "head -c 99999 /dev/zero | tr '\\0' x >&2; exit 1")
    assert len(scope.lacks()) < 400
    a_program(tmp_path, monkeypatch, "exit 7")
    assert scope.lacks() == "systemd-run refuses (exit code 7)"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert scope.lacks() == "there is no systemd-run"
