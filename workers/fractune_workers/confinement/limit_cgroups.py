"""Child cgroups that hold a process to a CPU limit, in both versions of cgroups.

A child's name has the process that made it. So the cgroups of a worker that was killed are found and removed later.
"""

import contextlib
import errno
import itertools
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from fractune_core.cpu_limits import USUAL_PERIOD_MS, LimitSize
from fractune_core.errors import one_line, shortened
from fractune_core.host.cpus import ROOT, cgroup_folders

# A scope of systemd with a CPU limit, for a process that may not make a cgroup itself.
#
# `systemd-run --scope` asks the manager of the system or of the user for a cgroup, enters it and becomes the process.
# The manager removes the cgroup when its last process has ended, however that ended.

PROGRAM = "systemd-run"
_TIMEOUT_S = 20.0
_MOST_CHARACTERS = 300
"""of its words in a message"""


@dataclass(frozen=True)
class SystemdScope:
    """The scope for a limit. A request has this weight, by the name of the property that the cgroup's version has."""

    size: LimitSize
    weight: str = ""

    @property
    def command(self) -> list[str]:
        """What stands in front of the command of the limited process."""
        properties = [f"CPUQuota={self.size.limit_m / 10:g}%"]
        if self.size.period_ms != USUAL_PERIOD_MS:
            properties.append(f"CPUQuotaPeriodSec={self.size.period_ms}ms")
        if self.weight:
            properties.append(self.weight)
        manager = [] if os.geteuid() == 0 else ["--user"]
        settings = [word for each in properties for word in ("-p", each)]
        return [PROGRAM, *manager, "--scope", "--quiet", *settings, "--"]

    def lacks(self) -> str:
        """Why systemd gives no such scope, found by trying it; empty when it does."""
        if shutil.which(PROGRAM) is None:
            return f"there is no {PROGRAM}"
        try:
            tried = subprocess.run(
                [*self.command, "true"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{PROGRAM} does not work: {error}"
        said = one_line(" ".join(tried.stderr.split()))
        why = shortened(said, _MOST_CHARACTERS) or f"exit code {tried.returncode}"
        return f"{PROGRAM} refuses ({why})" if tried.returncode else ""


_PREFIX = "fractune-limit-"
_NAME = re.compile(rf"{_PREFIX}([0-9]+)-([0-9]+)-[0-9]+")
"""process id, start time and number"""
_LEAF = "fractune-rest"
"""for the processes of a cgroup that has got children with a controller: version 2 lets it hold none itself"""
_CONTROLLERS, _CHILDREN_HAVE = "cgroup.controllers", "cgroup.subtree_control"
_TRIES = 10
_EMPTY_WITHIN_S, _LOOK_EVERY_S = 5.0, 0.005
_STARTED = 19
"""place of the start time among the fields of `/proc/PID/stat` behind the name"""
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class LimitCgroups:
    """Those below the cgroup of this process; `root` is the folder that has `/proc` and `/sys`."""

    root: Path = ROOT

    def current(self) -> Path | None:
        """The cgroup of this process that counts its CPU time, of version 1 where both are mounted."""
        folders = list(cgroup_folders(self.root))
        v1, v2 = filter(_is_v1, folders), (folder for folder in folders if (folder / _CONTROLLERS).exists())
        return next(v1, None) or next(v2, None)

    def weight(self) -> int | None:
        """The weight of this process's cgroup against its siblings; None for a topmost cgroup of version 2."""
        own = self.current()
        if own is None:
            return None
        try:
            return int((own / ("cpu.shares" if _is_v1(own) else "cpu.weight")).read_text())
        except (OSError, ValueError):
            return None

    def weight_of(self, request_m: int) -> int:
        """The weight that a request stands for here, as Kubernetes translates it."""
        own, shares = self.current(), max(2, request_m * 1024 // 1000)
        return shares if own is not None and _is_v1(own) else 1 + (shares - 2) * 9999 // 262142

    def systemd_weight(self, request_m: int) -> str:
        """The property of a systemd unit that gives it the weight of a request."""
        own = self.current()
        return f"{'CPUShares' if own is not None and _is_v1(own) else 'CPUWeight'}={self.weight_of(request_m)}"

    def lacks(self) -> str:
        """Why this process may not make a cgroup with a limit; empty when it may."""
        home = self._home()
        if home is None:
            return "no cgroup for CPUs was found"
        if not (_is_v1(home) or "cpu" in _words(home / _CONTROLLERS)):
            return f"{home} has no CPU controller"
        files = [home] if _is_v1(home) else [home, home / "cgroup.procs", home / _CHILDREN_HAVE]
        closed = [path for path in files if not os.access(path, os.W_OK)]
        return f"{closed[0]} cannot be changed" if closed else ""

    def make(self, size: LimitSize) -> Path:
        """A cgroup with this limit, and no process in it yet. Raises OSError."""
        home = self._home()
        if home is None:
            raise FileNotFoundError(self.lacks())
        if not _is_v1(home):
            _enable_cpu(home)
        folder = home / f"{_PREFIX}{os.getpid()}-{_started(os.getpid())}-{next(_NUMBERS)}"
        folder.mkdir()
        try:
            for name, text in _contents(size, self.weight_of(size.request_m), v1=_is_v1(home)):
                (folder / name).write_text(text)
        except OSError:
            self.remove(folder)
            raise
        return folder

    def join(self, folder: Path) -> None:
        """Move this process with all its threads. Raises OSError."""
        (folder / "cgroup.procs").write_text("0")

    def remove(self, folder: Path) -> None:
        """Remove a cgroup once its processes are gone, which takes the kernel a moment. Raises OSError if they stay."""
        deadline = time.monotonic() + _EMPTY_WITHIN_S
        while True:
            try:
                return self._rmdir(folder)
            except FileNotFoundError:
                return None
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_EVERY_S)

    def remove_dead(self) -> None:
        """Remove the cgroups of processes that ended without doing so. One with a process left in it stays."""
        home = self._home()
        for folder in [] if home is None else home.glob(f"{_PREFIX}*"):
            named = _NAME.fullmatch(folder.name)
            if named is not None and _started(int(named[1])) != named[2]:
                with contextlib.suppress(OSError):
                    self._rmdir(folder)

    def _rmdir(self, folder: Path) -> None:
        folder.rmdir()

    def _home(self) -> Path | None:
        """Where children are made: the cgroup of this process, or the one whose leaf it was moved into."""
        own = self.current()
        return own.parent if own is not None and own.name == _LEAF else own


def _contents(size: LimitSize, weight: int, *, v1: bool) -> list[tuple[str, str]]:
    """Files of a cgroup in the order in which they are written."""
    if not v1:
        weights = [("cpu.weight", str(weight))] if size.request_m else []
        return [("cpu.max", f"{size.quota_us} {size.period_us}"), *weights]
    weights = [("cpu.shares", str(weight))] if size.request_m else []
    return [("cpu.cfs_period_us", str(size.period_us)), ("cpu.cfs_quota_us", str(size.quota_us)), *weights]


def _is_v1(folder: Path) -> bool:
    return (folder / "cpu.shares").exists()


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _enable_cpu(home: Path) -> None:
    """Let the children of a cgroup of version 2 have limits. Raises OSError."""
    control = home / _CHILDREN_HAVE
    if "cpu" in _words(control):
        return
    for _ in range(_TRIES):
        if (home / "cgroup.type").exists():  # it is not the topmost one, which may hold processes all the same
            _move_to_leaf(home)
        try:
            control.write_text("+cpu")
        except OSError as error:
            if error.errno != errno.EBUSY:  # a process was started meanwhile
                raise
        else:
            return
    raise OSError(errno.EBUSY, "new processes keep starting", str(home))


def _move_to_leaf(home: Path) -> None:
    leaf = home / _LEAF
    leaf.mkdir(exist_ok=True)
    for pid in _words(home / "cgroup.procs"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            (leaf / "cgroup.procs").write_text(pid)


def _started(pid: int) -> str:
    """When the process started, in ticks of the kernel; empty when it has ended. No other process has both numbers."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_STARTED]
    except OSError:
        return ""
