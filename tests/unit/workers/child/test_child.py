"""The supervised child: real processes that answer, hang, crash and are killed."""

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import ShareNotReady, ShareUnavailable
from fractune_workers.child import Child
from fractune_workers.child.errors import (
    TRIES,
    CallFailed,
    ChildDied,
    ChildKilled,
    ChildTimeout,
    ChildUnwanted,
    retry_if_killed,
)
from fractune_workers.child.messages import decode, encode
from fractune_workers.child.process import Start
from tests.support.paths import REPOSITORY
from tests.support.processes.redis_process import wait_until
from tests.support.processes.worker_processes import alive

MODULE = "tests.support.children.child_module"


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child(MODULE)
    yield child
    child.stop()


def test_a_call_is_answered_and_the_process_stays(child: Child) -> None:
    assert child.call("echo", 20, value=[1, "x", None]) == [1, "x", None]
    pid = child.pid
    assert child.call("pid", 20) == pid
    assert child.generation == 1


def test_it_is_kept_on_its_cores_and_its_supervisor_is_not() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    child = Child(MODULE, start=Start([core]))
    try:
        assert os.sched_getaffinity(child.call("pid", 20)) == {core}
    finally:
        child.stop()
    assert os.sched_getaffinity(0) == before


STOPS_ITS_CHILD_AND_DIES = """
import os, signal, sys
from fractune_workers.child import Child

class Hold:
    def is_wanted(self):
        return True
    def yield_cores(self):
        print(child.pid, fork, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

child = Child(sys.argv[1])
fork = child.call("fork", 60)
with child.preemptible_by(Hold()):
    child.call("tick", 60, note=os.devnull, ticks=10**9)
"""


def test_a_child_that_is_stopped_dies_with_its_forks_and_its_supervisor_however_early_that_is() -> None:
    command = [sys.executable, "-c", STOPS_ITS_CHILD_AND_DIES, MODULE]
    said = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False).stdout
    pids = list(map(int, said.split()))
    assert len(pids) == 2
    try:
        wait_until(lambda: not any(map(alive, pids)))
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_no_child_is_told_what_opens_the_fleet(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FRACTUNE_SECRET", "FRACTUNE_REDIS", "FRACTUNE_DATABASE"):
        monkeypatch.setenv(name, "redis://:a-password@host")
    monkeypatch.setenv("FRACTUNE_AUDIT", "kept")
    found = child.call("environment", 20)
    assert "redis://:a-password@host" not in found.values()
    assert found["FRACTUNE_AUDIT"] == "kept"


def test_a_child_whose_share_is_not_ready_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(MODULE, [str(tmp_path / "seen")])
    try:
        assert child.call("echo", 20, value=1) == 1
        assert child.generation == 2
        child.stop()
        (tmp_path / "seen").unlink()
        monkeypatch.setattr("fractune_workers.child._NOT_READY_TIMEOUT_S", 0.0)
        with pytest.raises(ShareNotReady, match="in a moment"):
            child.ensure()
    finally:
        child.stop()


def test_an_exception_fails_the_call_and_not_the_child(child: Child) -> None:
    with pytest.raises(CallFailed, match=r"^ValueError: the first line$"):
        child.call("fail", 20)
    with pytest.raises(ShareUnavailable, match="not here"):
        child.call("refuse", 20)
    assert child.call("echo", 20, value=1) == 1
    assert child.generation == 1


def test_a_child_that_has_lost_its_device_is_heard_and_meets_no_other_call(child: Child) -> None:
    first = child.call("pid", 20)
    with pytest.raises(ChildDied, match=r"^the device is lost$"):
        child.call("lose", 20)
    assert child.pid is None
    assert not alive(first)
    assert child.call("pid", 20) != first
    assert child.generation == 2


def test_a_hang_is_killed_with_all_that_it_started(child: Child, tmp_path: Path) -> None:
    child.ensure()
    grandchild = child.call("spawn", 20)
    with pytest.raises(ChildTimeout, match=r"within 0\.5 s"):
        child.call("hang", 0.5, note=str(tmp_path / "another"))
    wait_until(lambda: not alive(grandchild))
    assert child.call("echo", 20, value=2) == 2
    assert child.generation == 2


@pytest.mark.parametrize("answer", [True, False])
def test_what_a_living_child_uses_is_released_before_it_is_killed(tmp_path: Path, *, answer: bool) -> None:
    asked: list[tuple[int, bool]] = []

    def release(pid: int) -> bool:
        asked.append((pid, alive(pid)))
        return answer

    child = Child(MODULE, before_kill=release)
    child.ensure()
    pid = child.pid
    with pytest.raises(ChildTimeout) as caught:
        child.call("hang", 0.3, note=str(tmp_path / "grandchild"))
    assert asked == [(pid, True)]
    assert caught.value.released is answer
    with pytest.raises(ChildDied):
        child.call("crash", 20)
    child.stop()
    assert len(asked) == 1


def test_a_child_that_cannot_be_released_is_killed_all_the_same(tmp_path: Path) -> None:
    def release(_pid: int) -> bool:
        raise ShareUnavailable("the daemon does not answer")

    child = Child(MODULE, before_kill=release)
    child.ensure()
    pid = child.pid or 0
    with pytest.raises(ChildTimeout) as caught:
        child.call("hang", 0.3, note=str(tmp_path / "grandchild"))
    assert not caught.value.released
    assert not alive(pid)


def test_a_call_can_be_interrupted_from_another_thread(child: Child, tmp_path: Path) -> None:
    child.ensure()
    note = tmp_path / "grandchild"

    def interrupt() -> None:
        wait_until(note.exists)
        child.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(ChildDied, match="SIGKILL"):
        child.call("hang", 20, note=str(note))
    thread.join()
    assert child.call("echo", 20, value=5) == 5


def test_a_crash_names_its_signal_and_is_survived(child: Child) -> None:
    with pytest.raises(ChildDied, match="SIGSEGV"):
        child.call("crash", 20)
    with pytest.raises(ChildDied, match="exit code 3"):
        child.call("leave", 20)
    assert child.call("echo", 20, value=3) == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_child_did_is_done_again(child: Child, tmp_path: Path, number: signal.Signals) -> None:
    calls = 0

    def run() -> int:
        nonlocal calls
        calls += 1
        if calls < TRIES:
            child.ensure()
            pid = child.pid or 0
            note = tmp_path / f"note{calls}"
            with killed_once(note.exists, pid, number):
                child.call("hang", 20, note=str(note))
        return int(child.call("echo", 20, value=calls))

    assert retry_if_killed(run) == TRIES
    assert child.generation == TRIES


def test_a_child_that_is_killed_every_time_is_no_accident(child: Child, tmp_path: Path) -> None:
    notes = [tmp_path / f"note{number}" for number in range(TRIES)]
    left = iter(notes)

    def run() -> None:
        child.ensure()
        note = next(left)
        with killed_once(note.exists, child.pid or 0, signal.SIGKILL):
            child.call("hang", 20, note=str(note))

    with pytest.raises(
        ChildKilled, match=r"^the child was killed by SIGKILL, 3 times in a row; is this machine out of"
    ):
        retry_if_killed(run)
    assert all(note.exists() for note in notes)


def test_a_call_that_nobody_wants_any_more_is_ended(child: Child) -> None:
    child.ensure()
    pid = child.pid or 0
    wanted = iter([True, False])
    with child.while_wanted(lambda: next(wanted)), pytest.raises(ChildUnwanted):
        child.call("tick", 60, note=os.devnull, ticks=10_000)
    assert not alive(pid)
    assert child.call("echo", 20, value=1) == 1


def test_what_an_abandoned_call_still_owes_is_not_taken_for_the_next_answer(child: Child) -> None:
    def is_wanted() -> bool:
        raise LookupError("the fleet does not answer")

    with child.while_wanted(is_wanted), pytest.raises(LookupError):
        child.call("tick", 60, note=os.devnull, ticks=10_000)
    assert child.call("echo", 20, value=1) == 1


def test_a_crash_is_not_done_again(child: Child) -> None:
    calls = 0

    def run() -> None:
        nonlocal calls
        calls += 1
        child.call("crash", 20)

    with pytest.raises(ChildDied, match="SIGSEGV"):
        retry_if_killed(run)
    assert calls == 1


@contextlib.contextmanager
def killed_once(when: Callable[[], bool], pid: int, number: signal.Signals) -> Iterator[None]:
    """Within the block, `pid` is killed from another thread once `when` is true."""

    def kill() -> None:
        wait_until(when)
        os.kill(pid, number)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_child_killed_between_calls_is_replaced(child: Child) -> None:
    child.ensure()
    pid = child.pid or 0
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))
    assert child.call("echo", 20, value=4) == 4
    assert child.generation == 2


def test_the_child_is_recycled() -> None:
    recycled = Child(MODULE, recycle_calls=2)
    pids = {recycled.call("pid", 20) for _ in range(4)}
    recycled.stop()
    assert len(pids) == 2


def test_a_child_that_cannot_start_says_why() -> None:
    child = Child("tests.no_such_module")
    with pytest.raises(CallFailed, match="no_such_module"):
        child.ensure()


def test_stop_leaves_nothing(child: Child) -> None:
    child.ensure()
    pid = child.pid or 0
    child.stop()
    assert not alive(pid)


def state_of(pid: int | None) -> str:
    """As the kernel writes it: R, S, D, T, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


class Standstill:
    """A hold that is wanted once, as soon as the child has begun; looks at the child while it stands aside."""

    def __init__(self, child: Child, note: Path) -> None:
        self.child, self.note = child, note
        self.states: list[str] = []

    def is_wanted(self) -> bool:
        return self.note.exists() and not self.states

    def yield_cores(self) -> None:
        self.states.append(state_of(self.child.pid))
        before = self.note.read_text()
        deadline = time.monotonic() + 3.5
        while time.monotonic() < deadline:
            assert self.note.read_text() == before
            time.sleep(0.05)


def test_a_call_stands_still_while_it_gives_way_and_that_time_does_not_count(child: Child, tmp_path: Path) -> None:
    child.ensure()
    hold = Standstill(child, tmp_path / "note")
    with child.preemptible_by(hold):
        assert child.call("tick", 3.0, note=str(tmp_path / "note"), ticks=60) == 60
    assert hold.states == ["T"]
    assert child.generation == 1
    assert child.call("echo", 20, value=1) == 1


class WhileItStartsAnother:
    """A hold that is wanted once, while the child sleeps in vfork; the other process may begin after that."""

    def __init__(self, child: Child, fifo: Path) -> None:
        self.child, self.fifo = child, fifo
        self.states: list[str] = []

    def is_wanted(self) -> bool:
        if self.states:
            with contextlib.suppress(OSError):  # nobody reads yet: once more at the next look
                os.close(os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK))
            return False
        return state_of(self.child.pid) == "D"

    def yield_cores(self) -> None:
        self.states.append(state_of(self.child.pid))


def test_a_child_that_is_starting_another_process_gives_way(child: Child, tmp_path: Path) -> None:
    """The other process is stopped before it begins, so the child cannot stop, and must not be waited for."""
    os.mkfifo(tmp_path / "fifo")
    child.ensure()
    hold = WhileItStartsAnother(child, tmp_path / "fifo")
    with child.preemptible_by(hold):
        assert child.call("start_another", 30, fifo=str(hold.fifo)) == 0
    assert hold.states == ["D"]


def test_a_child_that_dies_while_it_stands_still_is_noticed(child: Child, tmp_path: Path) -> None:
    class Deadly(Standstill):
        def yield_cores(self) -> None:
            self.states.append("killed")
            os.kill(self.child.pid or 0, signal.SIGKILL)

    child.ensure()
    with child.preemptible_by(Deadly(child, tmp_path / "note")), pytest.raises(ChildDied, match="SIGKILL"):
        child.call("tick", 10, note=str(tmp_path / "note"), ticks=1000)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"value": None},
        {"value": b"text".decode(), "lacking": []},
        {"method": "build", "value": {"object": b"\x00\xff" * 1000, "status": "ok", "none": b"", "second": b"{}"}},
    ],
)
def test_a_message_comes_back_as_it_was_sent(message: dict[str, Any]) -> None:
    assert decode(encode(message)) == message


def test_bytes_travel_as_they_are() -> None:
    code = bytes(range(256)) * 4096
    assert code in encode({"value": {"object": code}})


def raw(header: Any, frames: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("!I", len(text)) + text + frames


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00\x00",
        raw([]),
        raw({}, b"more"),
        raw({})[:-1],
        struct.pack("!I", 100) + b"{}",
        struct.pack("!I", 2) + b"no",
        raw({"value": {}, "frames": {"object": 5}}, b"four"),
        raw({"value": {}, "frames": {"object": 3}}, b"four"),
        raw({"value": {}, "frames": {"object": -1}}),
        raw({"value": {}, "frames": {"object": True}}, b"1"),
        raw({"value": {}, "frames": {"object": "4"}}, b"four"),
        raw({"value": [], "frames": {"object": 4}}, b"four"),
        raw({"frames": {"object": 4}}, b"four"),
        raw({"value": {}, "frames": [4]}, b"four"),
        raw({"value": {}, "frames": None}),
        raw({"value": {}, "frames": []}),
        raw({"value": {}, "frames": 0}),
        raw({"value": {}, "frames": ""}),
    ],
)
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(message)
