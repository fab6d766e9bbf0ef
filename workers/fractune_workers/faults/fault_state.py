"""The fault state of a device: what may run on it now, which clients have to leave it, and which artifact is to blame.

Under MPS the fault of one client is reported to all, without naming the culprit, and no new client is accepted until
all have left. A fault state has a number, which counts such faults. Its members are measurers; a member is a client
while its process is on the device, and has an attempt while that process runs something. The rules:

1. A fault voids every attempt: the state has failed, and every artifact that was running is a suspect.
2. Then every client leaves. When the last one has, and the device is active again, the next state opens.
3. A suspect runs alone. When that goes well it is measured; when it fails, the failure is its own.
4. An artifact that took the device down alone has a verdict, and never runs again.
5. An artifact that fails beside others, without affecting them, is a suspect too: a co-runner may be the reason.

Nothing here reads a clock or a file: every method gives the state that follows.
`fractune_workers.faults.fault_state` keeps it.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from fractune_core.codec.plain_json import JsonObject, from_json
from fractune_core.errors import StateUnusable
from fractune_core.host.private_folders import open_plain
from fractune_workers.locks.flock import is_locked, lock, locked

REMEMBERED = 256
"""Suspects and verdicts kept. The oldest are forgotten, at the price of one more fault."""


class Step(StrEnum):
    """The next step of a member that wants to run something."""

    GO = "go"
    """the attempt has begun"""
    GO_ALONE = "go_alone"
    """it has begun, and no other one begins until it has ended"""
    WAIT = "wait"
    """ask again"""
    REFUSED = "refused"
    """an artifact is known to have failed the device"""
    LEAVE = "leave"
    """the state has failed: end the process on the device"""
    AWAY = "away"
    """this member has left, others have not: ask again"""
    REOPEN = "reopen"
    """every client has left: look whether the device is active, and open the next state"""


class Ending(StrEnum):
    """The meaning of the end of an attempt."""

    VALID = "valid"
    VOID = "void"
    """the state has failed meanwhile: whatever came out does not count"""
    BESIDE_OTHERS = "beside_others"
    """it failed beside others: no artifact is blamed"""
    OWN_FAULT = "own_fault"
    """it failed while nothing else ran on the device"""


@dataclass(frozen=True)
class Attempt:
    artifacts: tuple[str, ...]
    """what is run; empty while a process only gets ready"""
    alone: bool = False


@dataclass(frozen=True)
class ArtifactFailure:
    """The failure of an artifact."""

    status: str
    """`fractune_core.records.Status`"""
    cause: str


@dataclass(frozen=True)
class FaultState(JsonObject):
    number: int = 0
    failure: str = ""
    """why the state failed; empty while it is open"""
    clients: frozenset[str] = frozenset()
    """members with a process on the device"""
    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    """by member, all of them clients"""
    waiting: frozenset[str] = frozenset()
    """members that wait to run alone: no other attempt begins before theirs"""
    suspects: tuple[str, ...] = ()
    verdicts: Mapping[str, ArtifactFailure] = field(default_factory=dict)
    """by artifact: those that took the device down alone"""

    def begin(self, member: str, artifacts: tuple[str, ...], *, alone: bool = False) -> tuple[FaultState, Step]:
        """Begin an attempt at `artifacts`, if it may begin now. It runs alone if asked for, or if one is a suspect."""
        if any(each in self.verdicts for each in artifacts):
            return self._not_waiting(member), Step.REFUSED
        if self.failure:
            return self, self._way_out(member)
        if alone or not set(self.suspects).isdisjoint(artifacts):
            if self.attempts:
                return replace(self, waiting=self.waiting | {member}), Step.WAIT
            return self._running(member, Attempt(artifacts, alone=True)), Step.GO_ALONE
        if self.waiting - {member} or any(attempt.alone for attempt in self.attempts.values()):
            return self._not_waiting(member), Step.WAIT
        return self._running(member, Attempt(artifacts)), Step.GO

    def finish(self, member: str) -> tuple[FaultState, Ending]:
        """End an attempt that went well."""
        attempt, ended = self._ended(member)
        if self.failure:
            return ended, Ending.VOID
        return (_cleared(ended, attempt.artifacts) if attempt.alone else ended), Ending.VALID

    def fail(self, member: str, verdict: ArtifactFailure, *, spreads: bool) -> tuple[FaultState, Ending]:
        """End an attempt that failed; `spreads`: the other clients of the device are, or may be, affected.

        Of several artifacts that failed together, alone, none can be named: they are suspects, each to run alone.
        """
        attempt, ended = self._ended(member)
        if self.failure:
            return ended, Ending.VOID
        named = attempt.alone and len(attempt.artifacts) == 1
        ended = (_cleared if named else _suspecting)(ended, attempt.artifacts)
        if spreads:
            if named:
                ended = replace(ended, verdicts=_newest({**ended.verdicts, attempt.artifacts[0]: verdict}))
            ended = _down(ended, verdict.cause)
        return ended, Ending.OWN_FAULT if attempt.alone else Ending.BESIDE_OTHERS

    def withdraw(self, member: str) -> FaultState:
        """End an attempt that has run nothing."""
        return self._ended(member)[1]

    def abandon(self, member: str, cause: str) -> FaultState:
        """A member has stopped in the middle of an attempt, for a reason of its own: no artifact is blamed, and the
        device may be down.
        """
        if member not in self.attempts:
            return self
        attempt, ended = self._ended(member)
        return ended if self.failure else _down(_suspecting(ended, attempt.artifacts), cause)

    def leave(self, member: str) -> FaultState:
        """The member's process has ended, and the member has no attempt."""
        return replace(self._not_waiting(member), clients=self.clients - {member})

    def remove_dead(self, members: Iterable[str]) -> FaultState:
        """These members are dead, and their processes with them."""
        state = self
        for member in members:
            state = state.abandon(member, "a measurer died in the middle of a measurement").leave(member)
        return state

    def reopen(self, number: int) -> FaultState:
        """The device was seen active after state `number` had failed and every client had left."""
        if number != self.number or not self.is_deserted:
            return self
        return replace(self, number=number + 1, failure="")

    @property
    def is_deserted(self) -> bool:
        """The state has failed, and every client has left."""
        return bool(self.failure) and not self.clients

    def must_leave(self, member: str) -> bool:
        return bool(self.failure) and member in self.clients

    def verdict_of(self, artifacts: Iterable[str]) -> ArtifactFailure | None:
        """The first verdict that is known of one of them."""
        return next((self.verdicts[each] for each in artifacts if each in self.verdicts), None)

    @property
    def members(self) -> frozenset[str]:
        """The members to watch for their death."""
        return self.clients | self.waiting

    def _way_out(self, member: str) -> Step:
        if member in self.clients:
            return Step.LEAVE
        return Step.AWAY if self.clients else Step.REOPEN

    def _not_waiting(self, member: str) -> FaultState:
        return replace(self, waiting=self.waiting - {member})

    def _running(self, member: str, attempt: Attempt) -> FaultState:
        return replace(
            self._not_waiting(member), clients=self.clients | {member}, attempts={**self.attempts, member: attempt}
        )

    def _ended(self, member: str) -> tuple[Attempt, FaultState]:
        others = {name: attempt for name, attempt in self.attempts.items() if name != member}
        return self.attempts[member], replace(self, attempts=others)

    @classmethod
    def from_json(cls, data: Any) -> FaultState:
        """The state that `to_json` wrote. Raises ValueError for anything else, and for the state of another version."""
        if not isinstance(data, dict) or data.keys() != cls().to_json().keys():
            raise ValueError("its fields differ from those of this version")
        return from_json(cls, data)


def _cleared(state: FaultState, artifacts: tuple[str, ...]) -> FaultState:
    return replace(state, suspects=tuple(each for each in state.suspects if each not in artifacts))


def _suspecting(state: FaultState, artifacts: tuple[str, ...]) -> FaultState:
    return replace(state, suspects=tuple(dict.fromkeys((*state.suspects, *artifacts)))[-REMEMBERED:])


def _down(state: FaultState, cause: str) -> FaultState:
    """Failed, with every artifact that was running as a suspect."""
    running = tuple(artifact for attempt in state.attempts.values() for artifact in attempt.artifacts)
    return replace(_suspecting(state, running), failure=cause or "a fault", waiting=frozenset())


def _newest(verdicts: dict[str, ArtifactFailure]) -> dict[str, ArtifactFailure]:
    return dict(list(verdicts.items())[-REMEMBERED:])


# The fault state of a device that several measurers of this host share, in a file, and which of them are alive.
#
# A folder for each device. The folder's lock is held for a change of the state; a member holds a lock of its own for
# as long as it lives. The kernel frees the locks of a process that dies, so that the next change removes the dead
# member. Nothing has to be renewed. Process ids are not compared, because they mean nothing between containers.

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
