"""Measurements of one GPU, admitted side by side or alone: against real processes, because the locks belong to them."""

from __future__ import annotations

import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fractune_core.shares import GrantedShare
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.locks.flock import locked
from fractune_workers.locks.gpu_slots import ALONE, Claim, GpuSlots, claim_of
from tests.support.processes.redis_process import wait_until

GPU = "GPU-00000000-cdf7-e667-3644-bf5b4f46ed65"
OTHER_GPU = "GPU-00000001-cdf7-e667-3644-bf5b4f46ed65"
CLAIMS = {
    "quarter": claim_of(GrantedShare("mps:25", 32, 132, "sm", 1 << 36, reserved=False)),
    "instance": claim_of(GrantedShare("mig:1g.18gb", 16, 132, "sm", 1 << 34, reserved=True)),
    "full": claim_of(GrantedShare("full", 132, 132, "sm", 1 << 37, reserved=False)),
    "alone": ALONE,
}

_HOLD = """
import sys
from pathlib import Path
from fractune_workers.locks.gpu_slots import Claim, GpuSlots
from fractune_workers.locks.core_locks import CoreLocks
folder, gpu, group, units, total = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
with CoreLocks(folder, 8).measuring_on(GpuSlots(folder, gpu), Claim(group, units, total), [0]) as slot:
    print("in", slot.co_runners, flush=True)
    sys.stdin.read()
print("out", slot.co_runners, flush=True)
"""


class Measurer:
    """A process that measures on a GPU until `leave`."""

    def __init__(self, folder: Path, claim: str, gpu: str = GPU) -> None:
        wanted = CLAIMS[claim]
        options = [str(folder), gpu, wanted.exclusion_group, str(wanted.units), str(wanted.units_total)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._line = ""

    def _says_within(self, timeout_s: float) -> bool:
        assert self.process.stdout is not None
        if not self._line and select.select([self.process.stdout], [], [], timeout_s)[0]:
            self._line = self.process.stdout.readline()
        return bool(self._line)

    def co_runners(self) -> int:
        """Once it measures: how many others there were then."""
        assert self._says_within(30)
        return int(self._line.removeprefix("in "))

    @property
    def is_in(self) -> bool:
        return self._says_within(0)

    def waits_in_line(self) -> bool:
        """Whether the kernel has it wait for a lock."""
        locks = Path("/proc/locks").read_text().splitlines()
        return any("->" in line and str(self.process.pid) in line.split() for line in locks)

    def leave(self) -> int:
        """The neighbours that its turn had."""
        self.co_runners()
        return int(self.process.communicate("", timeout=30)[0].removeprefix("out "))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def arrive(tmp_path: Path) -> Iterator[Callable[..., Measurer]]:
    come: list[Measurer] = []

    def arrive(claim: str, gpu: str = GPU) -> Measurer:
        come.append(Measurer(tmp_path, claim, gpu))
        return come[-1]

    yield arrive
    for each in come:
        each.kill()


Arrive = Callable[..., Measurer]


def queued(folder: Path, gpu: str = GPU) -> bool:
    """Whether a claim waits in the turnstile."""
    return CoreLocks(folder / f"gpu-{gpu}", 8).is_measurement_waiting()


def test_four_quarters_measure_side_by_side_and_a_fifth_waits(arrive: Arrive, tmp_path: Path) -> None:
    four = [arrive("quarter") for _ in range(4)]
    assert sorted(each.co_runners() for each in four) == [0, 1, 2, 3]
    fifth = arrive("quarter")
    wait_until(lambda: queued(tmp_path))
    assert not fifth.is_in
    assert four[0].leave() == 3
    assert fifth.co_runners() == 3


def test_a_share_that_fills_the_gpu_is_alone_on_it(arrive: Arrive, tmp_path: Path) -> None:
    quarter = arrive("quarter")
    assert quarter.co_runners() == 0
    full = arrive("full")
    wait_until(lambda: queued(tmp_path))
    assert not full.is_in
    assert quarter.leave() == 0
    assert full.co_runners() == 0
    late = arrive("quarter")
    wait_until(lambda: queued(tmp_path))
    assert not late.is_in
    assert full.leave() == 0
    assert late.co_runners() == 0


def test_a_validation_is_not_overtaken_by_trials_that_would_fit(arrive: Arrive, tmp_path: Path) -> None:
    trial = arrive("instance")
    assert trial.co_runners() == 0
    final = arrive("alone")
    wait_until(lambda: queued(tmp_path))
    later = arrive("instance")
    wait_until(later.waits_in_line)
    assert trial.leave() == 0
    assert final.co_runners() == 0
    assert not later.is_in
    assert final.leave() == 0
    assert later.co_runners() == 0


def test_instances_measure_side_by_side(arrive: Arrive) -> None:
    seven = [arrive("instance") for _ in range(7)]
    assert sorted(each.co_runners() for each in seven) == list(range(7))


def test_who_comes_before_a_measurement_has_begun_counts_at_its_end(tmp_path: Path) -> None:
    slots, others = GpuSlots(tmp_path, GPU), GpuSlots(tmp_path, GPU)
    held, other = slots.hold(CLAIMS["instance"]), others.hold(CLAIMS["instance"])
    with slots._slot(held) as slot:
        assert slot.co_runners == 0
    assert slot.co_runners == 1
    other.close()
    with slots._slot(held) as slot:  # the next one under the same claim
        assert slot.co_runners == 0
    assert slot.co_runners == 0
    held.close()


def test_beside_the_claim_of_another_version_nothing_fits(arrive: Arrive, tmp_path: Path) -> None:
    path = tmp_path / f"gpu-{GPU}" / "claim-of-another-version"
    path.parent.mkdir()
    path.write_text('{"group_of_another_version": "mps"}')
    with locked(path):
        waiting = arrive("quarter")
        wait_until(lambda: queued(tmp_path))
        assert not waiting.is_in
    assert waiting.co_runners() == 0


def test_gpus_know_nothing_of_each_other(arrive: Arrive) -> None:
    assert arrive("alone").co_runners() == 0
    assert arrive("alone", OTHER_GPU).co_runners() == 0


def test_dead_processes_hold_nothing_and_block_nothing(arrive: Arrive, tmp_path: Path) -> None:
    holder = arrive("full")
    holder.co_runners()
    first = arrive("full")
    wait_until(lambda: queued(tmp_path))
    second = arrive("quarter")
    first.kill()
    holder.kill()
    assert second.co_runners() == 0
    second.leave()
    assert arrive("alone").co_runners() == 0
    assert len(list((tmp_path / f"gpu-{GPU}").glob("claim-*"))) == 1


def test_a_measurement_that_comes_and_goes_in_the_middle_was_a_neighbour(arrive: Arrive) -> None:
    first = arrive("quarter")
    assert first.co_runners() == 0
    second = arrive("quarter")
    assert second.co_runners() == 1
    assert second.leave() == 1
    assert first.leave() == 1


def test_builds_go_on_beside_it_and_cpu_measurements_do_not(arrive: Arrive, tmp_path: Path) -> None:
    on_gpu = arrive("quarter")
    on_gpu.co_runners()
    locks = CoreLocks(tmp_path, 8)
    with locks.working([0, 1]) as hold:
        assert not hold.is_wanted()
    owned = threading.Event()

    def measure() -> None:
        with locks.measuring([0]) as slot:
            assert slot.co_runners == 0
            owned.set()

    on_cpu = threading.Thread(target=measure)
    on_cpu.start()
    wait_until(locks.is_measurement_waiting)
    assert not owned.is_set()
    on_gpu.leave()
    on_cpu.join(30)
    assert owned.is_set()
    with locks.measuring([0]):
        waiting = arrive("quarter")
        wait_until(lambda: len(list((tmp_path / f"gpu-{GPU}").glob("claim-*"))) == 1)
        assert not waiting.is_in
    assert waiting.co_runners() == 0


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(sorted(CLAIMS)), min_size=2, max_size=8))
def test_whatever_comes_at_once_what_is_held_together_fits(tmp_path: Path, coming: list[str]) -> None:
    """Every thread is a measurer of its own: locks belong to open files."""
    guard, held, misfits = threading.Lock(), list[Claim](), list[list[Claim]]()

    def measure(claim: Claim) -> None:
        for _ in range(3):
            with GpuSlots(tmp_path, GPU).holding(claim):
                with guard:
                    if not claim.fits(held):
                        misfits.append([claim, *held])
                    held.append(claim)
                with guard:
                    held.remove(claim)

    threads = [threading.Thread(target=measure, args=(CLAIMS[each],)) for each in coming]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert misfits == []
    assert list((tmp_path / f"gpu-{GPU}").glob("claim-*")) == []
