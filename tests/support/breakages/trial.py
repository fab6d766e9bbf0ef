"""One promise is broken in a copy of the checkout, and the test that keeps it is run there."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sysconfig
import time
import venv
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from fractune_core.host.cpus import cgroup_folders
from fractune_core.host.limits import tasks_of
from tests.support.breakages.table import Breakage
from tests.support.paths import REPOSITORY

_ROOTS = ("tuner_core", "tuner_server", "workers", "tuner_runtime", "tuner_client", ".")
_LAST_WORDS_S = 30.0
"""after Ctrl-C a test may end what it has started"""
_MOST_TASKS = 4096
"""processes and threads of one test: without the sandbox that it breaks, it might start them without end"""


class Verdict(StrEnum):
    """What a test made of a broken promise."""

    CAUGHT = "caught"
    """it failed"""
    HUNG = "hung"
    """it did not end in time, which is told too"""
    SURVIVED = "survived"
    """it passed: nobody would have seen that the promise is broken"""
    NOT_TESTED = "not tested"
    """there was no such test, or it did not begin"""


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    verdict: Verdict
    secs: float
    said: str
    """the first line of the first failure"""


class Checkout:
    """A copy of this checkout in `folder`, as it is now, without what git ignores; and a Python that imports it.

    Tests start processes with paths of their own, which would find what is installed: this checkout, with nothing
    broken. So the Python is one of a virtual environment whose own paths begin with the copy.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._python = _python_of(folder)
        listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        names = subprocess.run(listed, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")
        for name in filter(None, names):
            if (REPOSITORY / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, folder / name)

    def try_broken(self, breakage: Breakage, limit_s: float) -> Outcome:
        """What becomes of the test while the promise is broken."""
        file = self._folder / breakage.file
        whole = file.read_text(encoding="utf-8")
        self._write(file, whole.replace(breakage.before, breakage.after))
        try:
            return self.run(breakage, limit_s)
        finally:
            self._write(file, whole)

    def run(self, breakage: Breakage, limit_s: float) -> Outcome:
        """What becomes of the test with the code as it is in the copy."""
        report = self._folder / "report.xml"
        report.unlink(missing_ok=True)
        # Our own limit lets the test end what it has started; pytest's would not.
        how = ("-x", "-q", "--timeout=0", "-p", "no:cacheprovider", f"--junitxml={report}")
        began_s = time.monotonic()
        code = _run_within([self._python, "-m", "pytest", *how, breakage.test], self._folder, limit_s)
        return _outcome(code, report, time.monotonic() - began_s)

    def _write(self, file: Path, text: str) -> None:
        """Python must not take what it has compiled of the other text, which may be as long and as old."""
        file.write_text(text, encoding="utf-8")
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()


def _python_of(folder: Path) -> Path:
    """Of a virtual environment in `folder`, with the packages of this one behind the copy's own."""
    home = folder / ".python"
    venv.create(home, symlinks=True)
    places = [*(folder / root for root in _ROOTS), sysconfig.get_path("purelib")]
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    (packages / "checkout.pth").write_text("".join(f"{place}\n" for place in places))
    return home / "bin" / "python"


def _run_within(command: list[str | Path], folder: Path, limit_s: float) -> int | None:
    """The exit code; None after the limit. Nothing that the command has started is left."""
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    before = set(psutil.Process().children(recursive=True))
    with _task_limit(_MOST_TASKS) as enter:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            preexec_fn=enter,  # noqa: PLW1509  this program has one thread
            **quiet,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it may end what it has started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_WORDS_S)
            return None
        finally:
            left = set(psutil.Process().children(recursive=True)) - before
            for each in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(left)
            process.wait()


@contextlib.contextmanager
def _task_limit(most: int) -> Iterator[Callable[[], object]]:
    """The function that a new process calls to have at most `most` tasks with all that it starts. None is left then.

    No limit of a process binds root, so root's is that of a cgroup. Raises OSError where root may make none.
    """
    if os.getuid():
        own = (tasks_of(os.getuid()) + most,) * 2
        yield lambda: resource.setrlimit(resource.RLIMIT_NPROC, own)
        return
    group = _new_group()
    try:
        (group / "pids.max").write_text(f"{most}")
        yield lambda: (group / "cgroup.procs").write_text("0")
    finally:
        (group / "pids.max").write_text("0")
        while pids := (group / "cgroup.procs").read_text().split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        group.rmdir()


def _new_group() -> Path:
    """A cgroup that counts tasks, in this process's or in the nearest one above where such may be made."""
    for parent in cgroup_folders(controller="pids"):
        group = parent / f"fractune-broken-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            if (group / "pids.max").exists():
                return group
            group.rmdir()
    raise OSError("no cgroup can limit the processes of a test here; run this as another user than root")


def _outcome(code: int | None, report: Path, secs: float) -> Outcome:
    if code is None:
        return Outcome(Verdict.HUNG, secs, "")
    cases = ET.parse(report).iter("testcase") if report.exists() else ()  # noqa: S314  it is pytest's own
    found = [case.find("failure") for case in cases]
    failures = [failure for failure in found if failure is not None]
    if code == 1 and failures:
        return Outcome(Verdict.CAUGHT, secs, failures[0].get("message", "").partition("\n")[0])
    if code == 0 and found and not _all_skipped(report):
        return Outcome(Verdict.SURVIVED, secs, "")
    return Outcome(Verdict.NOT_TESTED, secs, f"pytest ended with code {code}")


def _all_skipped(report: Path) -> bool:
    return all(case.find("skipped") is not None for case in ET.parse(report).iter("testcase"))  # noqa: S314
