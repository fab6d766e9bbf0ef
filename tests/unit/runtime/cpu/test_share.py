"""The share that a process is under, read from a made-up /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.shares import Share
from fractune_runtime.cpu import confine, share_here
from tests.support.hardware.cgroup_tree import a_host


def test_without_a_quota_the_affinity_counts(tmp_path: Path) -> None:
    here = share_here(a_host(tmp_path, cpus="0-2,8,10-11", cpu_max="max 100000"))
    assert (here.units, here.cpus) == (6, (0, 1, 2, 8, 10, 11))
    assert here.reason == "6 cores by its affinity"


@pytest.mark.parametrize(
    ("quota", "units", "says"),
    [
        ("200000 100000", 2, "2 cores by the quota of its cgroup (its affinity has 4 cores)"),
        ("150000 100000", 1, "1.5 cores by the quota of its cgroup (its affinity has 4 cores)"),
        ("50000 100000", 1, "0.5 cores by the quota of its cgroup (its affinity has 4 cores)"),
        ("800000 100000", 4, "4 cores by its affinity"),
    ],
)
def test_a_quota_counts_whole_cores_and_at_least_one(tmp_path: Path, quota: str, units: int, says: str) -> None:
    here = share_here(a_host(tmp_path, cpu_max=quota))
    assert (here.units, here.cpus, here.reason) == (units, (0, 1, 2, 3), says)
    assert (here.quota is None) == (units == 4)


def test_a_system_that_tells_nothing_has_the_affinity_alone(tmp_path: Path) -> None:
    here = share_here(tmp_path)
    assert here.cpus == tuple(sorted(os.sched_getaffinity(0)))


def test_this_process() -> None:
    here = share_here()
    assert 1 <= here.units <= len(here.cpus)
    assert set(here.cpus) == os.sched_getaffinity(os.getpid())


def test_confining_takes_the_first_cpus_and_no_more_than_there_are(affinity: set[int]) -> None:
    confine(Share.parse("cpu:1"))
    assert os.sched_getaffinity(0) == {min(affinity)}
    with pytest.raises(ShareUnavailable, match=r"share 'cpu:2' is larger than the 1 core of this"):
        confine(Share.parse("cpu:2"))
    with pytest.raises(BadRequest, match="is of a GPU"):
        confine(Share.parse("mps:25"))
