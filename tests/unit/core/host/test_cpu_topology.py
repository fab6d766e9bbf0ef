"""Which CPUs a share takes, on made-up machines."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fractune_core.host import machine
from fractune_core.host.cpus import EACH_A_CORE, CpuTopology, cpu_list
from fractune_core.host.machine import network_file_system
from tests.support.hardware.cpu_tree import cpus_of


def test_cpus_are_read_by_core_and_by_node(tmp_path: Path) -> None:
    machine = CpuTopology.read(cpus_of(tmp_path, "0,2", "1,3", "4-5", nodes=("0-3", "4-5", "")))
    assert machine.cores([0, 1, 2, 4, 7]) == [[0, 2], [1], [4], [7]]
    assert machine.nodes([5, 0, 3]) == [[5], [0, 3]]
    assert machine.with_siblings([0, 5, 9]) == {0, 2, 4, 5, 9}


@pytest.mark.parametrize("text", ["1", "3-0"])
def test_a_list_of_siblings_without_the_cpu_itself_counts_as_none(tmp_path: Path, text: str) -> None:
    root = cpus_of(tmp_path, "0,1")
    (root / "sys/devices/system/cpu/cpu0/topology/thread_siblings_list").write_text(f"{text}\n")
    assert CpuTopology.read(root).with_siblings([0]) == {0}


def test_without_files_each_cpu_is_a_core_in_one_node(tmp_path: Path) -> None:
    assert CpuTopology.read(tmp_path) == EACH_A_CORE
    assert EACH_A_CORE.nodes([3, 1]) == [[3, 1]]
    assert EACH_A_CORE.choose([5, 7, 9], 2) == [5, 7]


@pytest.mark.parametrize("cores", [("0,1", "2,3"), ("0,2", "1,3")])
def test_two_of_four_cpus_are_of_two_cores(tmp_path: Path, cores: tuple[str, ...]) -> None:
    machine = CpuTopology.read(cpus_of(tmp_path, *cores))
    assert machine.choose(range(4), 1) == [0]
    assert len(machine.cores(machine.choose(range(4), 2))) == 2
    assert len(machine.cores(machine.choose(range(4), 3))) == 2
    assert machine.choose(range(4), 4) == machine.choose(range(4), 9) == [0, 1, 2, 3]


def test_a_core_of_which_a_part_is_used_comes_last(tmp_path: Path) -> None:
    machine = CpuTopology.read(cpus_of(tmp_path, "0,4", "1,5", "2,6", "3,7"))
    assert machine.choose([1, 2, 3, 4, 5, 6, 7], 1) == [1], "CPU 4 shares a core with CPU 0"
    assert machine.choose([4, 5, 6, 7], 2) == [4, 5], "no core is free as a whole"


NODES = ("0-3,8-11", "4-7,12-15")
EIGHT_CORES = tuple(f"{cpu},{cpu + 8}" for cpu in range(8))


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        ("0-15", 4, "0-3"),
        ("3-7,11-15", 4, "4-7"),  # one core is left in the first node
        ("0-15", 6, "0-5"),  # no node has six cores
        ("0-15", 10, "0-9"),
        ("2-5,10-13", 3, "2-4"),  # no node has three of these cores
    ],
)
def test_a_share_is_in_one_node_if_one_has_the_cores(tmp_path: Path, free: str, count: int, chosen: str) -> None:
    machine = CpuTopology.read(cpus_of(tmp_path, *EIGHT_CORES, nodes=NODES))
    assert machine.choose(list(cpu_list(free)), count) == list(cpu_list(chosen))


@given(st.lists(st.integers(0, 15), unique=True), st.integers(0, 16))
def test_a_share_has_as_many_cpus_of_the_free_ones_as_it_can(free: list[int], count: int) -> None:
    siblings = {cpu: (cpu % 8, cpu % 8 + 8) for cpu in range(16)}
    machine = CpuTopology(siblings, {cpu: cpu // 4 % 2 for cpu in range(16)})
    chosen = machine.choose(free, count)
    assert len(set(chosen)) == len(chosen) == min(count, len(free))
    assert set(chosen) <= set(free)
    assert len(machine.cores(chosen)) == min(count, len(machine.cores(free)))


def test_this_machine_has_each_cpu_in_a_core() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    machine = CpuTopology.read()
    assert sorted(cpu for core in machine.cores(allowed) for cpu in core) == allowed
    assert all(cpu in machine.core_of(cpu) for cpu in allowed)


@pytest.mark.parametrize("text", ["", "x", "1,,2"])
def test_text_that_lists_no_cpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(cpu_list(text))


_TABLE = r"""
/dev/sda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
filer:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/ann/local xfs rw 0 0
//filer/data /mnt/my\040data cifs rw 0 0
ann@host: /mnt/ssh fuse.sshfs rw 0 0
tmpfs /mnt/ram tmpfs rw 0 0
filer:/new /mnt/ram nfs rw 0 0
/dev/fuse /mnt/local fuse.ntfs-3g rw 0 0
""".lstrip()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/fractune", None),
        ("/home/ann/state", "nfs4"),
        ("/home", "nfs4"),
        ("/homes/ann", None),
        ("/home/ann/local/state", None),
        ("/mnt/my data/state", "cifs"),
        ("/mnt/ssh/x", "fuse.sshfs"),
        ("/mnt/ram/x", "nfs"),
        ("/mnt/local/x", None),
    ],
)
def test_the_innermost_mount_decides(tmp_path: Path, path: str, kind: str | None) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(_TABLE)
    assert network_file_system(Path(path), mounts) == kind


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"d / ext4 rw 0 0\nfiler:/ {tmp_path.resolve() / 'far'} nfs rw 0 0\n")
    assert network_file_system(tmp_path / "near" / "state", mounts) == "nfs"
    assert network_file_system(tmp_path / "other", mounts) is None


def test_without_a_table_nothing_is_refused(tmp_path: Path) -> None:
    assert network_file_system(tmp_path, tmp_path / "none") is None
    assert network_file_system(tmp_path) is None


STAT = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 30 9999 5 1 2 7 50 0\ncpu1 300 0 0 9999 0 0 0 40 0 0\nintr 1 2 3\n"
"""user, nice, system, idle, iowait, irq, softirq, steal; guests are counted as user too"""


def test_busy_time_is_that_of_the_cores_and_of_the_hypervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: STAT)
    assert [machine.busy_s(cores) for cores in ([0], [1], [0, 1], [])] == [1.6, 3.4, 5.0, 0.54]


def test_own_time_is_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_s, wall_s, own_s = iter([10.0, 14.0]), iter([100.0, 104.0]), iter([1.0, 4.0])
    monkeypatch.setattr(machine, "busy_s", lambda _: next(busy_s))
    monkeypatch.setattr(time, "perf_counter", lambda: next(wall_s))
    assert machine.beside_others(lambda: "found", [0], lambda: next(own_s)) == ("found", 0.25)
