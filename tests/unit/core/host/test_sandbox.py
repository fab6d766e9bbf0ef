"""What a sandbox lacks is named; the limit on processes holds; memory is hidden from the same user's processes."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fractune_core.host import limits
from fractune_core.host.machine import usable_memory_bytes
from fractune_core.host.private_folders import copy_strangers_file, empty_dir

_IMPORTS = """
import json, os, tempfile
from pathlib import Path
from fractune_core.host import limits
from fractune_core.host import sandbox
"""
# Limits and hidden memory are nothing to root. To change the user has hidden this process's, as no exec has.
_AS_ANY_USER = """
import ctypes
if os.getuid() == 0:
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""


def said(code: str, *args: str) -> Any:
    command = [sys.executable, "-c", _IMPORTS + code, *args]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_kernel_that_grants_nothing_is_told_of() -> None:
    secret, lacking = said(
        _AS_ANY_USER
        + """

def refused(*_, **__):
    raise OSError
sandbox.restrict_files = sandbox.calls.refuse_system_calls = refused
with tempfile.NamedTemporaryFile() as secret:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(sandbox.Sandbox(1 << 30, hidden=(secret.name,)).enter()).encode())
        os._exit(0)
    os.wait()
    print(json.dumps([secret.name, json.loads(os.read(reader, 10_000))]))
"""
    )
    assert lacking == [
        f"it can read {secret} (this kernel grants no Landlock)",
        "it can read the memory of the process that started it (this kernel grants no Landlock)",
        "it can end other processes of its user (Landlock refuses signals from Linux 6.12 on)",
        "it can open network connections (this kernel takes no filter of system calls, seccomp)",
    ]


def test_processes_are_limited() -> None:
    made = said(
        _AS_ANY_USER
        + """
limits.MORE_TASKS = 20
sandbox.Sandbox(1 << 30).enter()
read, write = os.pipe()
made = 0
try:
    while made < 400:
        if os.fork() == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
print(made)
"""
    )
    assert made < 400


def test_open_files_are_limited() -> None:
    """Each may be a socket, with memory of the kernel."""
    opened = """
sandbox.Sandbox(1 << 30).enter()
import socket
pairs = []
try:
    while len(pairs) < 5000:
        pairs.append(socket.socketpair())
except OSError:
    pass
print(len(pairs))
"""
    assert said(opened) < limits.OPEN_FILES


def test_a_process_that_measures_makes_only_the_calls_of_a_list() -> None:
    """All others are refused, those of a newer kernel as if they were not there."""
    code = """
import ctypes, errno, signal, sys, threading
from fractune_core.host import syscall_filter
signal.alarm(30)  # some calls would wait
column = list(syscall_filter._ARCHITECTURES).index(os.uname().machine)
calls = " ".join(syscall_filter._MEASURING.values()).split()
allowed = {call.split(":")[1 + column] for call in calls} | {"2" if column == 0 else "", ("257", "56")[column]}
sandbox.Sandbox(1 << 30, processes=False, programs=False).enter()
syscall_filter.allow_measuring_only()
libc = ctypes.CDLL(None, use_errno=True)
of_probes = {335, 336} if column == 0 else set()  # the kernel asks no filter, and ends who is not in a probe
errors = {}
for number in sorted({*range(600)} - of_probes):
    if str(number) not in allowed:
        made = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
        errors.setdefault("made" if made != -1 else errno.errorcode[ctypes.get_errno()], []).append(number)
threading.Thread(target=lambda: errors.update(thread=True)).start()
for name, flags in (("read", 0), ("write", os.O_WRONLY), ("new", os.O_CREAT), ("emptied", os.O_TRUNC)):
    try:
        os.close(os.open(sys.argv[1], flags))
        errors[name] = True
    except OSError as error:
        errors[name] = error.errno
print(json.dumps(errors))
"""
    found = said(code, sys.executable)
    assert found["ENOSYS"] == [435, *range(467, 600)]
    assert len(found["EPERM"]) > 250
    assert {name: each for name, each in found.items() if name not in {"EPERM", "ENOSYS"}} == {
        "thread": True,
        "read": True,
        **dict.fromkeys(("write", "new", "emptied"), errno.EPERM),
    }


def test_memory_is_hidden_from_the_same_user() -> None:
    before, after = said(
        _AS_ANY_USER
        + """
def read_by_a_child():
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            Path(f"/proc/{os.getppid()}/environ").read_bytes()
            os.write(writer, b"read")
        except OSError:
            os.write(writer, b"refused")
        os._exit(0)
    os.wait()
    return os.read(reader, 10).decode()

before = read_by_a_child()
sandbox.hide_memory()
print(json.dumps([before, read_by_a_child()]))
"""
    )
    assert (before, after) == ("read", "refused")


def test_a_peak_is_not_that_of_who_started_the_process() -> None:
    """As `ru_maxrss` is: a worker that a large process starts would take no death for one by memory."""
    held = b"x" * (256 << 20)
    assert said("print(limits.own_peak_bytes())") < len(held)


def test_the_least_of_host_and_cgroup(tmp_path: Path) -> None:
    host = usable_memory_bytes(tmp_path)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/job\n")
    mounted = "30 20 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    (tmp_path / "proc/self/mountinfo").write_text(mounted)
    folder = tmp_path / "sys/fs/cgroup/memory/job"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("1048576\n")
    assert usable_memory_bytes(tmp_path) == 1 << 20 < host
    (folder / "memory.limit_in_bytes").write_text("max\n")
    (folder.parent / "memory.max").write_text("2097152\n")
    assert usable_memory_bytes(tmp_path) == 2 << 20


def test_a_file_is_copied(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    copy_strangers_file(tmp_path / "file", tmp_path / "copy", 5)
    assert (tmp_path / "copy").read_bytes() == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        copy_strangers_file(tmp_path / "file", tmp_path / "copy", 4)
    assert not (tmp_path / "copy").exists()


def test_what_is_no_file_of_its_own_is_not_read(tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret", tmp_path / "folder"
    secret.write_text("a secret")
    folder.mkdir()
    (folder / "link").symlink_to(secret)
    (folder / "hard").hardlink_to(secret)
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    for name in ("link", "hard", "pipe", "folder", "none"):
        with pytest.raises(OSError, match=r"links|of its own|directory|No such file"):
            copy_strangers_file(folder / name, tmp_path / "copy", 100)


def test_a_folder_is_emptied_and_what_links_lead_to_stays(tmp_path: Path) -> None:
    other, folder = tmp_path / "other", tmp_path / "folder"
    for each in (other, folder, folder / "inner"):
        each.mkdir()
    (other / "file").touch()
    (folder / "link").symlink_to(other)
    (folder / "inner/link").symlink_to(other)
    os.mkfifo(folder / "pipe")
    empty_dir(folder)
    assert not list(folder.iterdir())
    assert (other / "file").exists()


def test_folders_that_are_nested_too_deeply_are_removed(tmp_path: Path) -> None:
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        for _ in range(1100):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(before)
    empty_dir(tmp_path)
    assert not list(tmp_path.iterdir())
