"""CPU limits: what is refused, and why. What holds of every mechanism is in `test_contract`."""

import os
from pathlib import Path

import pytest

from fractune_core.cpu_limits import LimitSize
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.confinement import cpu_limit, launcher_of
from fractune_workers.confinement.burn import Burn
from fractune_workers.confinement.cpu_limit import CpuLimitConfinement
from fractune_workers.confinement.limit_cgroups import LimitCgroups, SystemdScope
from fractune_workers.locks.flock import is_locked
from tests.support.hardware.cgroup_tree import a_host

CORES = len(os.sched_getaffinity(0))


def confinement(root: Path, share: str, *burned: Burn) -> CpuLimitConfinement:
    """In a made-up host; busy processes get `burned`, one after the other."""
    left = iter(burned)
    return CpuLimitConfinement(Share.parse(share), cgroups=LimitCgroups(root), burned=lambda *_: next(left))


def under(root: Path, **quotas: str) -> Path:
    return a_host(root, cgroup="0::/slice/box", **quotas)


def test_a_limit_above_the_machine_names_the_most() -> None:
    with pytest.raises(ShareUnavailable, match=rf"larger than this machine: .*ask for cpu:{CORES}000m at most"):
        CpuLimitConfinement(Share.parse("cpu:9999000m")).probe()
    with pytest.raises(ShareUnavailable, match=rf"a span of @{CORES} at most"):
        CpuLimitConfinement(Share.parse("cpu:500m@9999")).probe()


def test_a_smaller_quota_that_holds_already_is_named(tmp_path: Path) -> None:
    root = under(tmp_path, slice__cpu_max="25000 50000", slice__box__cpu_max="max 100000")
    with pytest.raises(ShareUnavailable, match=r"a cgroup caps this process at 500m in 50 ms; raise the limit"):
        confinement(root, "cpu:800m").probe()


def test_without_a_way_to_set_it_the_line_says_what_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    says = r"no cgroup for CPUs was found, and there is no systemd-run; run this as root, .* with --cpus 0.8"
    with pytest.raises(ShareUnavailable, match=says):
        confinement(under(tmp_path), "cpu:800m/10ms").probe()


def test_without_a_cgroup_of_its_own_the_process_starts_in_a_scope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "systemd-run").write_text("#!/bin/sh\n")
    (tmp_path / "systemd-run").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    limited = confinement(under(tmp_path / "host"), "cpu:800m")
    limited.probe()
    assert limited.environment()["FRACTUNE_LIMIT_CGROUP"] == ""
    assert launcher_of(limited) == SystemdScope(LimitSize.parse("800m")).command
    held = confinement(under(tmp_path / "held", slice__box__cpu_max="80000 100000"), "cpu:800m")
    assert launcher_of(held) == []


def test_an_equal_limit_of_a_slice_is_accepted(tmp_path: Path) -> None:
    root = under(tmp_path, slice__cpu_max="80000 100000", slice__box__cpu_max="max 100000")
    accepted = confinement(root, "cpu:800m", Burn(0.79, ()))
    accepted.probe()
    assert accepted.environment()["FRACTUNE_LIMIT_CGROUP"] == ""
    granted = accepted.verify()
    assert granted.limit is not None
    assert (granted.units, granted.limit.quota_m, granted.limit.burned_m) == (800, 800, 790)


@pytest.mark.parametrize("share", ["cpu:800m/10ms", "cpu:300m..800m"])
def test_an_equal_limit_with_another_period_or_weight_is_another_share(tmp_path: Path, share: str) -> None:
    root = under(tmp_path, slice__box__cpu_max="80000 100000")
    with pytest.raises(ShareUnavailable, match="cannot be verified: the cgroups of this process have a quota of 800m"):
        confinement(root, share, Burn(0.8, ())).verify()


EVERY_50_MS = (tuple(0.05 * n + 0.002 * (n % 2) for n in (1, 2, 4, 5)),)
OFTEN_OR_NOT = ((0.01, 0.05, 0.12, 0.15, 0.3),)


@pytest.mark.parametrize(
    ("cores", "resumes_s", "says"),
    [
        (0.5, EVERY_50_MS, r"got 500m; they are stopped and go on about every 50 ms: a container or slice above"),
        (0.5, OFTEN_OR_NOT, r"got 500m; other programs use these CPUs"),
        (0.5, ((), (0.1, 0.2)), r"got 500m; other programs use these CPUs"),
        (1.0, (), r"got 1000m; the quota is not in force"),
    ],
)
def test_a_proof_that_fails_says_why(
    tmp_path: Path,
    cores: float,
    resumes_s: tuple[tuple[float, ...], ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_limit, "_PATIENCE_S", 0.0)
    root = under(tmp_path, slice__box__cpu_max="80000 100000")
    with pytest.raises(ShareUnavailable, match=says):
        confinement(root, "cpu:800m", *[Burn(cores, resumes_s)] * 3).verify()


def test_a_disturbed_burn_is_tried_again(tmp_path: Path) -> None:
    root = under(tmp_path, slice__box__cpu_max="80000 100000")
    granted = confinement(root, "cpu:800m", *[Burn(0.6, ())] * 4, Burn(0.82, ())).verify()
    assert granted.limit is not None
    assert granted.limit.burned_m == 820


def test_threads_in_several_cgroups_are_found(tmp_path: Path) -> None:
    root = under(tmp_path, slice__box__cpu_max="80000 100000")
    for thread, cgroup in ((1, "0::/slice/box"), (2, "0::/")):
        (root / f"proc/self/task/{thread}").mkdir(parents=True)
        (root / f"proc/self/task/{thread}/cgroup").write_text(cgroup)
    with pytest.raises(ShareUnavailable, match="threads of this process are in several cgroups"):
        confinement(root, "cpu:800m", Burn(0.8, ())).verify()


def test_saved_up_time_is_spent_before_it_counts(tmp_path: Path) -> None:
    root = under(tmp_path, slice__box__cpu_max="80000 100000")
    (root / "sys/fs/cgroup/slice/box/cpu.max.burst").write_text("40000\n")
    asked: list[tuple[float, ...]] = []

    def burned(*options: float) -> Burn:
        asked.append(options)
        return Burn(0.8, ())

    share = CpuLimitConfinement(Share.parse("cpu:800m"), cgroups=LimitCgroups(root), burned=burned)
    granted = share.verify()
    assert granted.limit is not None
    assert granted.limit.burst_us == 40_000
    assert asked[0] == pytest.approx((1, 0.1 + 0.04 / 0.2, 0.5))


def test_limits_are_proved_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they can be more than the CPUs have."""
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(cpu_limit, "default_lock_dir", lambda: tmp_path / "locks")
    root, met = under(tmp_path, slice__box__cpu_max="80000 100000"), []

    def burned(*_options: float) -> Burn:
        met.append(is_locked(tmp_path / "locks/limit-proof"))
        return Burn(0.8, ())

    CpuLimitConfinement(Share.parse("cpu:800m"), cgroups=LimitCgroups(root), burned=burned).verify()
    assert met == [True]
    assert not is_locked(tmp_path / "locks/limit-proof")
