"""A real cgroup with a CPU quota, where the test may make one."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fractune_workers.confinement.limit_cgroups import LimitCgroups

_MOUNTS = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000


@dataclass(frozen=True)
class CappedCgroup:
    folder: Path

    @property
    def quota_file(self) -> Path:
        """takes the quota in microseconds of a period of 100 ms"""
        modern = self.folder / "cpu.max"
        return modern if modern.exists() else self.folder / "cpu.cfs_quota_us"

    def run(self, code: str) -> str:
        """What Python prints that runs `code` in a child cgroup without a quota of its own."""
        with self._inner() as inner:
            joining = f"open({str(inner / 'cgroup.procs')!r}, 'w').write('0')\n"
            done = subprocess.run(
                [sys.executable, "-c", joining + code], capture_output=True, text=True, check=True, timeout=60
            )
        return done.stdout.strip()

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Within the block this process is in such a child cgroup, and so are the processes that it starts."""
        before = LimitCgroups().current()
        assert before is not None
        with self._inner() as inner:
            (inner / "cgroup.procs").write_text("0")
            try:
                yield
            finally:
                (before / "cgroup.procs").write_text("0")

    @contextlib.contextmanager
    def _inner(self) -> Iterator[Path]:
        inner = self.folder / "inner"
        inner.mkdir()
        try:
            yield inner
        finally:
            for folder in [*filter(Path.is_dir, inner.iterdir()), inner]:
                LimitCgroups().remove(folder)


@contextlib.contextmanager
def capped_cgroup(cores: float | None) -> Iterator[CappedCgroup]:
    """A cgroup, of the version that is mounted here, that may use so many cores; None = all. It takes precedence over
    other programs. Skips where none can be made.
    """
    name = f"fractune-test-{os.getpid()}"
    modern = (_MOUNTS / "cgroup.controllers").exists()
    folder = _MOUNTS / name if modern else _MOUNTS / "cpu" / name
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        if modern:
            (folder / "cpu.max").write_text(f"{'max' if cores is None else round(cores * _PERIOD_US)} {_PERIOD_US}")
            (folder / "cpu.weight").write_text("2000")
            (folder / "cgroup.subtree_control").write_text("+cpu")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(-1 if cores is None else round(cores * _PERIOD_US)))
            (folder / "cpu.shares").write_text("20480")
    except OSError as error:
        folder.rmdir()
        pytest.skip(f"no cgroup can be given a CPU quota here: {error}")
    try:
        yield CappedCgroup(folder)
    finally:
        folder.rmdir()
