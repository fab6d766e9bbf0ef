"""The fault state of a device that several measurers of this host share, in a file, and which of them are alive.

A folder for each device. The folder's lock is held for a change of the state; a member holds a lock of its own for as
long as it lives. The kernel frees the locks of a process that dies, so that the next change removes the dead member.
Nothing has to be renewed. Process ids are not compared, because they mean nothing between containers.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from fractune_core.errors import StateUnusable
from fractune_core.host.private_folders import open_plain
from fractune_workers.faults.fault_state import FaultState
from fractune_workers.locks.flock import is_locked, lock, locked

_T = TypeVar("_T")


class FaultStateFile:
    """The fault state of the device `identity`, in a folder below `directory`. May be used by several threads.

    Every method raises StateUnusable when the folder cannot be read or written.
    """

    def __init__(self, directory: Path, identity: str) -> None:
        self.identity = identity
        self._directory = directory / f"device-{re.sub(r'[^A-Za-z0-9._-]', '_', identity)}"
        with self._reporting():
            self._directory.mkdir(parents=True, exist_ok=True)

    def join(self) -> Membership:
        """Take part, until the membership is ended or this process dies."""
        with self._reporting():
            return Membership(self._directory)

    def look(self) -> FaultState:
        """The state as it is. Its dead members are still in it."""
        with self._reporting():
            return self._read()

    def change(self, transition: Callable[[FaultState], tuple[FaultState, _T]]) -> _T:
        """Remove dead members, replace the state by what `transition` makes of it, and give its other answer."""
        with self._reporting(), locked(self._directory / "lock"):
            before = self._read()
            dead = [member for member in before.members if not is_locked(_presence(self._directory, member))]
            after, answer = transition(before.remove_dead(dead))
            if after != before:
                self._write(after)
            for member in dead:
                _presence(self._directory, member).unlink(missing_ok=True)
            return answer

    def _read(self) -> FaultState:
        path = self._directory / "state.json"
        try:
            with open_plain(path, "rb") as file:
                return FaultState.from_json(json.loads(file.read()))
        except FileNotFoundError:
            return FaultState()
        except ValueError as error:
            raise StateUnusable(
                f"this version of fractune cannot read {path} ({error}); "
                f"end the measurers of device {self.identity}, remove the file and start them again"
            ) from error

    def _write(self, state: FaultState) -> None:
        """Whole or not at all: readers hold no lock."""
        draft = self._directory / "state.json.new"
        with open_plain(draft, "w") as file:
            file.write(json.dumps(state.to_json()))
        draft.replace(self._directory / "state.json")

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateUnusable(
                f"the folder {self._directory}, which the measurers of one device share, cannot be used ({error}); "
                "repair it, or name another one by --lock-dir"
            ) from error


class Membership:
    """A member's name, and the lock that shows that it is alive."""

    def __init__(self, directory: Path) -> None:
        self.name = uuid.uuid4().hex
        self._path = _presence(directory, self.name)
        self._file = open_plain(self._path, "ab")
        lock(self._file)

    def end(self) -> None:
        """Once the member is no client any more. May be called twice."""
        self._path.unlink(missing_ok=True)
        self._file.close()


def _presence(directory: Path, member: str) -> Path:
    return directory / f"member-{member}"
