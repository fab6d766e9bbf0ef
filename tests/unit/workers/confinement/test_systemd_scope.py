"""Scopes of systemd: the command, and what a stand-in for `systemd-run` makes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fractune_core.cpu_limits import LimitSize
from fractune_workers.confinement.limit_cgroups import LimitCgroups, SystemdScope
from tests.support.hardware.cgroup_tree import V1_MOUNT, a_host


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
