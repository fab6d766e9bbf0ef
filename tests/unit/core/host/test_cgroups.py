"""The quota that a process is under, in made-up trees of both versions of cgroups, and in a real cgroup; and what is
throttled there.
"""

import os
from pathlib import Path

import pytest

from fractune_core.host.cpus import LimitFiles, ThrottledSince, Throttling, cgroup_folders, cpu_quota, throttlings
from tests.support.hardware.cgroup_tree import V1_MOUNT, a_host
from tests.support.hardware.real_cgroup import capped_cgroup

KUBE = {
    "kube__cpu_max": "300000 100000",
    "kube__pod__cpu_max": "200000 100000",
    "kube__pod__box__cpu_max": "max 100000",
}


@pytest.mark.parametrize(
    ("tree", "cores"),
    [
        ({"cpu_max": "max 100000"}, None),
        ({"cpu_max": "150000 100000"}, 1.5),
        ({"cpu_max": "50000 100000"}, 0.5),
        ({"cpu_max": "rubbish"}, None),
        ({"cgroup": "0::/kube/pod/box", **KUBE}, 2.0),  # the tightest ancestor limits
        # In a container the mount is the process's own cgroup.
        ({"cgroup": "0::/docker/abc", "part": "/docker/abc", "cpu_max": "100000 100000"}, 1.0),
        ({"cgroup": "0::/../other", "part": "/mine", "cpu_max": "100000 100000"}, 1.0),  # outside of the mount: its top
    ],
)
def test_version_2_of_cgroups(tmp_path: Path, tree: dict[str, str], cores: float | None) -> None:
    assert cpu_quota(a_host(tmp_path, **tree)) == cores


@pytest.mark.parametrize(("quota_us", "cores"), [("250000", 2.5), ("-1", None), ("rubbish", None)])
def test_version_1_of_cgroups(tmp_path: Path, quota_us: str, cores: float | None) -> None:
    root = a_host(tmp_path, cgroup="4:cpu,cpuacct:/box\n5:memory:/box\n0::/", mount=V1_MOUNT)
    folder = root / "sys/fs/cgroup/cpu,cpuacct/box"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text(quota_us)
    (folder / "cpu.cfs_period_us").write_text("100000")
    assert cpu_quota(root) == cores


def test_in_version_1_too_the_tightest_ancestor_limits(tmp_path: Path) -> None:
    root = a_host(tmp_path, cgroup="4:cpu,cpuacct:/system.slice/box\n0::/", mount=V1_MOUNT)
    slice_folder = root / "sys/fs/cgroup/cpu,cpuacct/system.slice"
    for folder, quota_us in ((slice_folder / "box", "-1"), (slice_folder, "50000")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.cfs_quota_us").write_text(quota_us)
        (folder / "cpu.cfs_period_us").write_text("100000")
    assert cpu_quota(root) == 0.5


def test_the_quota_of_a_real_cgroup() -> None:
    with capped_cgroup(cores=0.5) as cgroup:
        assert cgroup.run("from fractune_core.host.cpus import cpu_quota; print(cpu_quota())") == "0.5"


def test_what_each_cgroup_above_was_throttled_for(tmp_path: Path) -> None:
    root = a_host(tmp_path, cgroup="0::/kube/pod", kube__pod__cpu_max="50000 100000")
    mount = root / "sys/fs/cgroup"
    (mount / "kube/pod/cpu.stat").write_text("usage_usec 9\nnr_periods 8\nnr_throttled 3\nthrottled_usec 1500000\n")
    (mount / "kube/cpu.stat").write_text("rubbish\n")
    (mount / "cpu.stat").write_text("usage_usec 99\n")  # the root has no quota, so it counts none
    assert throttlings(cgroup_folders(root)) == [Throttling(3, 1.5)]


def test_version_1_counts_in_nanoseconds(tmp_path: Path) -> None:
    root = a_host(tmp_path, cgroup="4:cpu,cpuacct:/box\n0::/", mount=V1_MOUNT)
    for folder, counts in (("box", (2, 250_000_000)), ("", (0, 0))):
        stat = root / "sys/fs/cgroup/cpu,cpuacct" / folder / "cpu.stat"
        stat.parent.mkdir(parents=True, exist_ok=True)
        stat.write_text("nr_periods 5\nnr_throttled {}\nthrottled_time {}\n".format(*counts))
    assert throttlings(cgroup_folders(root)) == [Throttling(2, 0.25), Throttling(0, 0.0)]


def test_stops_since_a_moment_are_those_of_the_cgroup_that_stopped_longest(tmp_path: Path) -> None:
    root = a_host(tmp_path, cgroup="0::/kube/pod", kube__pod__cpu_max="50000 100000")
    stats = [root / "sys/fs/cgroup" / folder / "cpu.stat" for folder in ("kube/pod", "kube")]

    def stopped(*usecs: int) -> None:
        for stat, usec in zip(stats, usecs, strict=True):
            stat.write_text(f"nr_throttled 3\nthrottled_usec {usec}\n")

    stopped(1_000_000, 5_000_000)
    since = ThrottledSince(root)
    assert since.seconds() == 0
    stopped(1_500_000, 5_250_000)
    assert since.seconds() == 0.5
    stopped(1_500_000, 6_250_000)
    assert since.seconds() == 1.25
    for stat in stats:
        stat.unlink()
    assert since.seconds() is None


def test_stops_are_counted_on_after_a_move_to_another_cgroup(tmp_path: Path) -> None:
    root = a_host(tmp_path, cgroup="0::/a")
    for name, usec in (("a", 1_000_000), ("b", 9_000_000)):
        stat = root / f"sys/fs/cgroup/{name}/cpu.stat"
        stat.parent.mkdir(parents=True)
        stat.write_text(f"nr_throttled 3\nthrottled_usec {usec}\n")
    since = ThrottledSince(root)
    (root / "sys/fs/cgroup/a/cpu.stat").write_text("nr_throttled 4\nthrottled_usec 1500000\n")
    assert since.seconds() == 0.5
    (root / "proc/self/cgroup").write_text("0::/b\n")
    assert since.seconds() == 0.5
    stat.write_text("nr_throttled 4\nthrottled_usec 9250000\n")
    assert since.seconds() == 0.75


def test_without_cgroups_no_stop_is_known(tmp_path: Path) -> None:
    assert ThrottledSince(tmp_path).seconds() is None


_USE_UP_THE_QUOTA = """
import time
from fractune_core.host.cpus import ThrottledSince, cgroup_folders, throttlings
folders, since = list(cgroup_folders()), ThrottledSince()
before, deadline = throttlings(folders), time.monotonic() + 30
while time.monotonic() < deadline:
    rises = zip(throttlings(folders), before)
    if any(now.count > then.count and now.throttled_s > then.throttled_s for now, then in rises):
        print("throttled", since.seconds() > 0)
        break
"""


def test_a_real_cgroup_that_uses_up_its_quota_is_throttled() -> None:
    with capped_cgroup(cores=0.2) as cgroup:
        assert cgroup.run(_USE_UP_THE_QUOTA) == "throttled True"


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
