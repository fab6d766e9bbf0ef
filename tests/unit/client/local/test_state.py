"""The state folder: held by one stack, proved writable, its secret made once."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fractune.local.state import (
    LOCK_FILE,
    SOCKET_PATH_BYTES,
    StackEntry,
    StackFolder,
    is_running,
    open_state,
    read_entry,
    socket_dir,
    take,
)
from fractune_core.errors import StateUnusable

_OPEN = "import sys; from pathlib import Path; from fractune.local.state import open_state\n"


def test_the_folder_is_made_with_a_secret_that_stays(tmp_path: Path) -> None:
    with open_state(tmp_path / "a" / "b") as folder:
        first = folder.secret_file.read_text()
        assert stat.S_IMODE(folder.secret_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    with open_state(tmp_path / "a" / "b") as folder:
        assert folder.secret_file.read_text() == first
    assert len(first.strip()) == 64


def test_a_folder_that_others_may_open_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o755)
    with open_state(tmp_path):
        pass
    note = f"note: state folder {tmp_path}: others may open it (mode 755); close it by 'chmod 700 {tmp_path}'\n"
    assert capsys.readouterr().err == note
    tmp_path.chmod(0o700)
    with open_state(tmp_path):
        pass
    assert capsys.readouterr().err == ""


def test_a_second_stack_is_told_who_holds_the_folder_and_where_it_serves(tmp_path: Path) -> None:
    with open_state(tmp_path) as folder:
        with pytest.raises(StateUnusable, match=rf"pid {os.getpid()}\).*--server HOST:PORT"), open_state(tmp_path):
            pass
        folder.publish_address("127.0.0.1:5", for_others=False)
        with pytest.raises(StateUnusable, match=r"--server 127\.0\.0\.1:5"), open_state(tmp_path):
            pass


def test_the_folder_of_a_killed_stack_is_free_again(tmp_path: Path) -> None:
    code = _OPEN + f"with open_state(Path({str(tmp_path)!r})):\n    print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StateUnusable, match=f"pid {holder.pid}"), open_state(tmp_path):
            pass
        holder.kill()
    with open_state(tmp_path) as folder:
        assert folder.lock_file.read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize(
    ("code", "advice"), [(errno.ENOSPC, "free space"), (errno.EDQUOT, "free space"), (errno.ENOENT, "pass --state")]
)
def test_more_space_is_advised_only_where_the_disk_is_full(
    code: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(StackFolder, "probe", fail)
    said = str(StackFolder(tmp_path).failure())
    assert said.startswith(f"state folder {tmp_path}: {os.strerror(code)}; {advice}")
    assert said.endswith("pass --state with a writable folder")


@pytest.mark.parametrize("path", ["/proc/fractune", "/dev/null/state"])
def test_a_folder_that_cannot_be_made_is_named(path: str) -> None:
    with pytest.raises(StateUnusable, match=f"state folder {path}: .*--state"), open_state(Path(path)):
        pass


def test_a_folder_that_takes_no_bytes_is_found_out_at_once(tmp_path: Path) -> None:
    # A file size limit fails a write as a full disk does, with another errno.
    code = (
        "import resource\n" + _OPEN + "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        f"try:\n    open_state(Path({str(tmp_path)!r})).__enter__()\nexcept Exception as e:\n"
        "    print(type(e).__name__, e)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith(
        f"StateUnusable state folder {tmp_path}: File too large; pass --state with a writable folder"
    )


def test_sockets_go_to_a_short_folder_when_the_state_path_is_too_long(tmp_path: Path) -> None:
    with socket_dir(StackFolder(tmp_path), "redis.sock") as near:
        assert near == tmp_path / "run"
    deep = tmp_path / ("x" * 100)
    with socket_dir(StackFolder(deep), "redis.sock") as short:
        assert len(os.fsencode(short / "redis.sock")) <= SOCKET_PATH_BYTES
        assert stat.S_IMODE(short.stat().st_mode) == 0o700
    assert not short.exists()


def test_sockets_are_short_where_the_folder_of_temporary_files_is_long_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with socket_dir(StackFolder(long), "redis.sock") as short:
        assert len(os.fsencode(short / "redis.sock")) <= SOCKET_PATH_BYTES
        assert stat.S_IMODE(short.stat().st_mode) == 0o700
    assert not short.exists()


_HOLDS = """
import sys
from pathlib import Path
from fractune.local.state import open_state
with open_state(Path(sys.argv[1])) as folder:
    folder.publish_address("127.0.0.1:5", for_others=True)
    print(flush=True)
    sys.stdin.read()
"""


SKIPS = StackEntry(7, "h:1", for_others=True, skipped_shares={"cpu:1500m": "busy\nprocesses"})


@pytest.mark.parametrize(
    "entry", [StackEntry(7), StackEntry(7, "unix:/a b"), StackEntry(7, "h:1", for_others=True), SKIPS]
)
def test_an_entry_is_read_as_it_was_written(tmp_path: Path, entry: StackEntry) -> None:
    (tmp_path / LOCK_FILE).write_text(entry.to_text())
    assert read_entry(tmp_path) == entry


@pytest.mark.parametrize("text", [None, "", "no number\n"])
def test_without_a_stack_there_is_no_entry_and_nothing_is_made(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / LOCK_FILE).write_text(text)
    before = list(tmp_path.iterdir())
    assert (read_entry(tmp_path), is_running(tmp_path)) == (None, False)
    assert list(tmp_path.iterdir()) == before


def test_a_stack_that_ended_in_order_leaves_no_entry_and_one_that_was_killed_does(tmp_path: Path) -> None:
    with open_state(tmp_path):
        assert is_running(tmp_path)
    assert (read_entry(tmp_path), is_running(tmp_path)) == (None, False)
    command = [sys.executable, "-c", _HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        entry = StackEntry(holder.pid, "127.0.0.1:5", for_others=True)
        assert (read_entry(tmp_path), is_running(tmp_path)) == (entry, True)
        holder.kill()
    assert (read_entry(tmp_path), is_running(tmp_path)) == (entry, False)


def test_who_only_looks_keeps_no_stack_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / LOCK_FILE
    with path.open("a+") as looking, path.open("a+") as starting:
        fcntl.flock(looking, fcntl.LOCK_SH)
        # It has looked by the time that the other one tries again.
        monkeypatch.setattr("fractune.local.state.time.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        assert take(starting.fileno())
