"""A folder of the suite's own, and the end of every MPS daemon that was started in it.

Workers start the daemon of a GPU below TMPDIR, and the last worker ends it. A killed worker leaves the daemon running.
So TMPDIR is this folder for all processes of the suite, and the suite ends every daemon that is left in it. An earlier
daemon is not in the folder, and is left alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fractune_core.cuda import PROGRAM
from fractune_workers.gpu.mps_control import MpsControl, MpsFailed

_LOGS = ("*.log", "*.xml")
_MOST_LOG_BYTES = 256 << 10
_END_TIMEOUT_S = 10.0
_LOOK_EVERY_S = 0.1
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """The folder; not below TMPDIR, which may be too long for the daemon's sockets. No signal cuts its end short."""
    folder = Path(tempfile.mkdtemp(prefix="fgpu-", dir="/tmp"))
    try:
        yield folder
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPS}
        try:
            for line in end_daemons(folder):
                print(f"gpu_suite: {line}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def mark_time(private: Path) -> int:
    """Now, for `keep_logs`: by the clock of the file system, which is behind that of the system."""
    mark = private / "mark"
    mark.touch()
    return mark.stat().st_mtime_ns


def keep_logs(private: Path, out: Path, since: int) -> None:
    """Copy the logs and reports below `private` that were written after `since` to the folder `out`, the end of each
    where one is long.
    """
    found = {each for pattern in _LOGS for each in private.rglob(pattern) if _written(each) > since}
    for path in sorted(each for each in found if not each.is_relative_to(out.parent)):
        kept = out / path.relative_to(private)
        with contextlib.suppress(OSError):  # it has just gone, or may not be read
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(path.read_bytes()[-_MOST_LOG_BYTES:])


def _written(path: Path) -> int:
    """When; 0 if it is not a file, or gone."""
    try:
        return path.stat().st_mtime_ns if path.is_file() else 0
    except OSError:
        return 0


def end_daemons(folder: Path) -> list[str]:
    """End the MPS daemons in `folder`; a line for each that was still there, and for one that could not be ended."""
    return [line for pipe_dir in sorted(folder.glob("fractune-mps-*/pipe")) for line in _end(pipe_dir)]


def _end(pipe_dir: Path) -> Iterator[str]:
    pid = _pid(pipe_dir)
    if pid is None:
        return
    with contextlib.suppress(MpsFailed):
        MpsControl(pipe_dir).quit()
    for number in (0, signal.SIGTERM, signal.SIGKILL):  # 0: it may still be quitting
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if _ends(pid):
            yield f"ended the MPS daemon {pid}, which a worker had left behind"
            return
    yield f"the MPS daemon {pid} at {pipe_dir} could not be ended: end it by hand (kill -9 {pid})"


def _pid(pipe_dir: Path) -> int | None:
    """The daemon's process id, None when it has ended."""
    try:
        pid = int((pipe_dir / f"{PROGRAM}.pid").read_text())
    except (OSError, ValueError):
        return None
    return pid if _is_alive(pid) else None


def _ends(pid: int) -> bool:
    """Return True if it ends in time."""
    deadline = time.monotonic() + _END_TIMEOUT_S
    while _is_alive(pid):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _is_alive(pid: int) -> bool:
    """A zombie is not: in a container no process may be there to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
