"""The limit that holds here and the way to make another one, in made-up trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from fractune_workers.confinement.limit_cgroups import LimitCgroups
from fractune_workers.inventory.cpus import LimitsHere, limits_here
from tests.support.hardware.cgroup_tree import a_host
from tests.support.hardware.made_up_cgroups import made_up_cgroups


def test_the_cgroup_that_limits_most_is_named_with_its_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    root = a_host(
        tmp_path,
        cgroup="0::/pod/box",
        pod__cpu_max="150000 100000",
        pod__box__cpu_max="200000 100000",
        **{"pod__cpu.stat": "nr_periods 90\nnr_throttled 12\nthrottled_usec 3500000"},
    )
    found = limits_here(LimitCgroups(root))
    assert found == LimitsHere(
        cgroup=str(root / "sys/fs/cgroup/pod"),
        quota_m=1500,
        period_us=100_000,
        throttled_periods=12,
        throttled_s=3.5,
        refusal="no cgroup for CPUs was found, and there is no systemd-run",
    )


def test_without_a_limit_the_way_to_make_one_is_all(tmp_path: Path) -> None:
    assert limits_here(made_up_cgroups(tmp_path)) == LimitsHere(made_by="cgroup")


def test_a_scope_of_systemd_is_the_second_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "systemd-run").write_text("#!/bin/sh\n")
    (tmp_path / "systemd-run").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert limits_here(LimitCgroups(a_host(tmp_path / "host"))) == LimitsHere(made_by="systemd-run")
