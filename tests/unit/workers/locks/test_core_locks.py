"""A measurement owns its cores: against real processes, because the locks belong to processes."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fractune_core.host.cpus import CpuTopology
from fractune_workers.locks import core_locks
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.locks.flock import is_locked
from tests.support.processes.redis_process import wait_until

_HOLD = """
import sys
from pathlib import Path
from fractune_workers.locks.core_locks import CoreLocks
how, folder, host, cores = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), [int(c) for c in sys.argv[4].split(",")]
with getattr(CoreLocks(folder, host), how)(cores) as inside:
    print("in", inside.co_runners if how == "measuring" else "to work", flush=True)
    sys.stdin.read()
"""


class Holder:
    """A process that holds cores until `leave`."""

    def __init__(self, how: str, folder: Path, cores: str, host: int = 8) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, how, str(folder), str(host), cores],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def enter(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def waits(self) -> bool:
        """True once the process blocks in flock."""
        return "flock" in Path(f"/proc/{self.process.pid}/syscall").read_text() or self._state() == "S"

    def _state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    def leave(self) -> None:
        self.process.communicate("")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_builds_share_cores_and_a_measurement_does_not(tmp_path: Path) -> None:
    first, second = Holder("working", tmp_path, "0"), Holder("working", tmp_path, "0")
    assert first.enter() == second.enter() == "in to work"
    measuring = Holder("measuring", tmp_path, "0")
    first.leave()
    second.leave()
    assert measuring.enter() == "in 0"
    measuring.leave()


def test_other_cores_are_free_and_neighbours_are_counted(tmp_path: Path) -> None:
    one, other, build = (
        Holder("measuring", tmp_path, "0"),
        Holder("measuring", tmp_path, "1,2"),
        Holder("working", tmp_path, "3"),
    )
    assert {one.enter(), other.enter()} <= {"in 0", "in 1"}
    assert build.enter() == "in to work"
    third = Holder("measuring", tmp_path, "4")
    assert third.enter() == "in 2"
    for holder in (one, other, build, third):
        holder.leave()


@pytest.mark.parametrize(("host", "free"), [(2, False), (8, True)])
def test_on_a_small_host_a_measurement_has_all_cores(tmp_path: Path, host: int, *, free: bool) -> None:
    measuring = Holder("measuring", tmp_path, "0", host)
    assert measuring.enter() == "in 0"
    assert is_locked(tmp_path / "core-1") is not free
    measuring.leave()


def test_a_killed_holder_frees_its_cores(tmp_path: Path) -> None:
    measuring = Holder("measuring", tmp_path, "0")
    assert measuring.enter() == "in 0"
    waiting = Holder("working", tmp_path, "0")
    wait_until(waiting.waits)
    measuring.kill()
    assert waiting.enter() == "in to work"
    waiting.leave()
    again = Holder("measuring", tmp_path, "0")
    assert again.enter() == "in 0"
    again.leave()


def test_work_yields_its_cores_to_a_measurement_that_waits(tmp_path: Path) -> None:
    with CoreLocks(tmp_path, 8).working([0]) as hold:
        assert not hold.is_wanted()
        measuring = Holder("measuring", tmp_path, "0")
        wait_until(hold.is_wanted)
        back = threading.Thread(target=hold.yield_cores)
        back.start()
        assert measuring.enter() == "in 0"
        assert back.is_alive()
        measuring.leave()
        back.join(10)
        assert not back.is_alive()
        assert not hold.is_wanted()


@pytest.mark.parametrize(("most_s", "is_kept"), [(60.0, True), (0.01, False)])
def test_work_keeps_its_cores_for_a_part_of_its_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_s: float, *, is_kept: bool
) -> None:
    """Else it would never end where measurements follow each other, as those of several stacks do."""
    monkeypatch.setattr(core_locks, "_KEPT_PART", 1e6)
    monkeypatch.setattr(core_locks, "_MOST_KEPT_S", most_s)
    first = Holder("measuring", tmp_path, "0")
    assert first.enter() == "in 0"
    locks = CoreLocks(tmp_path, 8)
    leaving = threading.Thread(target=first.leave)
    leaving.start()
    with locks.working([0]) as hold:
        leaving.join()
        second = Holder("measuring", tmp_path, "0")
        wait_until(locks.is_measurement_waiting)
        if is_kept:
            assert not hold.is_wanted()
        else:
            wait_until(hold.is_wanted)
    assert second.enter() == "in 0"
    second.leave()


_CLAIM = """
import sys
from pathlib import Path
from fractune_workers.locks.core_locks import CoreLocks
locks = CoreLocks(Path(sys.argv[1]))
print(locks.claim([int(c) for c in sys.argv[2].split(",")], int(sys.argv[3])), flush=True)
sys.stdin.read()
"""


def claim(folder: Path, available: str, count: int) -> tuple[str, subprocess.Popen[str]]:
    """What a process has claimed, and the process, which keeps it."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CLAIM, str(folder), available, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process.stdout.readline().strip(), process


def test_measurers_of_one_host_claim_cores_of_their_own_until_they_end(tmp_path: Path) -> None:
    claimed = [claim(tmp_path, "2,3,5", count) for count in (1, 2, 1)]
    try:
        assert [cores for cores, _ in claimed] == ["[2]", "[3, 5]", "[2]"], "the third one finds none, and takes turns"
        claimed[1][1].kill()
        claimed[1][1].wait()
        claimed.append(claim(tmp_path, "2,3,5", 1))
        assert claimed[-1][0] == "[3]"
    finally:
        for _, process in claimed:
            process.kill()
        said = [process.communicate()[1].strip() for _, process in claimed]
    waits = "other measurers of this host have claimed 3 of the cores [2, 3, 5], and 1 are wanted"
    assert said[2].startswith(waits)
    assert said[2].endswith("this one shares the cores [2] with them, one measurement at a time")
    assert [said[0], said[1], said[3]] == ["", "", ""]


FOUR_CPUS_OF_TWO_CORES = CpuTopology({0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)})


def test_measurers_claim_cpus_of_different_physical_cores(tmp_path: Path) -> None:
    locks = CoreLocks(tmp_path, 4, FOUR_CPUS_OF_TWO_CORES)
    with locks._claims:
        assert [locks.claim(range(4), 1) for _ in range(3)] == [[0], [2], [1]]
    with locks._claims:
        assert locks.claim(range(4), 2) == [0, 2]


def test_a_measurement_owns_the_other_cpu_of_its_core_too(tmp_path: Path) -> None:
    with CoreLocks(tmp_path, 4, FOUR_CPUS_OF_TWO_CORES).measuring([2]):
        assert [is_locked(tmp_path / f"core-{cpu}") for cpu in range(4)] == [False, False, True, True]


def test_a_small_host_with_offline_cpus_has_larger_numbers(tmp_path: Path) -> None:
    """CPUs 0 and 5 are online, and two CPUs are counted."""
    with CoreLocks(tmp_path, 2, CpuTopology()).measuring([5]):
        assert [is_locked(tmp_path / f"core-{cpu}") for cpu in (0, 1, 5)] == [True] * 3


def test_a_process_that_waits_for_its_cores_knows_who_measures_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_locks, "_WAIT_NOTED_S", 0.0)
    measuring, elsewhere = Holder("measuring", tmp_path, "0"), Holder("measuring", tmp_path, "3")
    assert {measuring.enter(), elsewhere.enter()} <= {"in 0", "in 1"}  # each may see the other
    locks = CoreLocks(tmp_path, 8)

    def work() -> None:
        with locks.working([0, 1]):
            pass

    assert locks.awaited_holders() == [], "it does not wait"
    waiting = threading.Thread(target=work)
    waiting.start()
    wait_until(lambda: locks.awaited_holders() != [])
    assert [(holder.pid, holder.cores) for holder in locks.awaited_holders()] == [(measuring.process.pid, [0])]
    monkeypatch.setattr(core_locks, "_WAIT_NOTED_S", 60.0)
    assert locks.awaited_holders() == [], "it has not waited for long"
    measuring.leave()
    waiting.join()
    assert locks.awaited_holders() == []
    elsewhere.leave()
