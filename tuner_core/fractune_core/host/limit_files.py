"""The CPU limits of this process as the kernel shows them, cheap to read again: the files stay open."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fractune_core.host.cgroups import QUOTA_FILES, ROOT, cgroup_folders

_MOST_BYTES = 4096
"""read of one file at a time; the kernel returns no more in one call"""


class LimitFiles:
    """The quotas of this process's cgroup and of those above it, and its affinity. It opens them at the first reading,
    and again in a forked child and after a move to another cgroup.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._opened: _Opened | None = None

    def read(self) -> tuple[Any, ...]:
        """The contents, which differ from those of an earlier reading if a limit has changed. It takes some 10 us. Any
        thread may call it.
        """
        process = os.getpid()
        opened = self._opened
        texts = opened.texts() if opened is not None and opened.process == process else None
        if texts is None:
            opened = self._opened = _Opened(process, self._root)
            texts = opened.texts()
        return os.sched_getaffinity(process), texts


class _Opened:
    """The open files of a process in a cgroup. They never change, so readers need no lock."""

    def __init__(self, process: int, root: Path) -> None:
        self.process = process
        folders = cgroup_folders(root)
        paths = [root / "proc/self/cgroup", *(folder / name for folder in folders for name in QUOTA_FILES)]
        self._files = list(_opened(paths))
        # The last reader closes them: a thread may still read when another one has opened them again.
        weakref.finalize(self, _close, self._files).atexit = False
        self._cgroup = self._contents()[:1]

    def texts(self) -> list[bytes] | None:
        """None after a move to another cgroup."""
        texts = self._contents()
        return texts if texts[:1] == self._cgroup else None

    def _contents(self) -> list[bytes]:
        """Empty if a cgroup does not exist any more."""
        try:
            return [os.pread(file, _MOST_BYTES, 0) for file in self._files]
        except OSError:
            return []


def _opened(paths: Iterable[Path]) -> Iterator[int]:
    for path in paths:
        with contextlib.suppress(OSError):
            yield os.open(path, os.O_RDONLY)


def _close(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)
