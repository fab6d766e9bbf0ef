"""Which file systems are a network's, and the cores that others had while something ran."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fractune_core.host import machine
from fractune_core.host.machine import network_file_system

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
