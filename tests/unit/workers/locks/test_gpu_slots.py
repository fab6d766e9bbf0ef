"""Measurements of one GPU, admitted side by side or alone: against real processes, because the locks belong to them."""

import itertools
import random
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from fractune_core.shares import GrantedShare
from fractune_workers.locks import gpu_slots
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.locks.flock import locked
from fractune_workers.locks.gpu_slots import ALONE, Claim, GpuSlots, GpuTurns, claim_of
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


def queued(folder: Path) -> bool:
    """Whether a claim waits in the turnstile."""
    return CoreLocks(folder / f"gpu-{GPU}", 8).is_measurement_waiting()


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
    assert claims(tmp_path) == 1


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
        wait_until(lambda: claims(tmp_path) == 1)
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
    assert claims(tmp_path) == 0


SMS = 132


def granted(share: str, units: int, *, reserved: bool = False) -> GrantedShare:
    return GrantedShare(share, units, SMS, "sm", 1 << 36, reserved=reserved)


QUARTER = claim_of(granted("mps:25", 32))
HALF = claim_of(granted("mps:50", 66))
WHOLE = claim_of(granted("mps:100", 132))
PARTITION = claim_of(granted("mps-sm:4", 32, reserved=True))
INSTANCE = claim_of(granted("mig:1g.18gb", 16, reserved=True))
LARGE_INSTANCE = claim_of(granted("mig:3g.71gb", 60, reserved=True))
FULL = claim_of(granted("full", 132))
FULL_EXCLUSIVE = claim_of(granted("full", 132, reserved=True))
GREEN = claim_of(granted("green:32", 32))
NONE = claim_of(granted("none", 132))
ALL = [ALONE, QUARTER, HALF, WHOLE, PARTITION, INSTANCE, LARGE_INSTANCE, FULL, FULL_EXCLUSIVE, GREEN, NONE]


@pytest.mark.parametrize(
    ("one", "held", "fits"),
    [
        (QUARTER, [QUARTER] * 3, True),
        (QUARTER, [QUARTER] * 4, False),
        (QUARTER, [HALF, QUARTER], True),
        (HALF, [HALF], True),
        (HALF, [HALF, QUARTER], False),
        (QUARTER, [WHOLE], False),
        (QUARTER, [FULL], False),
        (FULL, [QUARTER], False),
        (WHOLE, [], True),
        (PARTITION, [PARTITION] * 3, True),
        (PARTITION, [QUARTER], False),
        (INSTANCE, [INSTANCE] * 6, True),
        (INSTANCE, [LARGE_INSTANCE, LARGE_INSTANCE], True),
        (INSTANCE, [NONE], False),
        (GREEN, [GREEN], False),
        (GREEN, [], True),
        (FULL_EXCLUSIVE, [], True),
        (ALONE, [INSTANCE], False),
        (INSTANCE, [ALONE], False),
    ],
)
def test_shares_run_side_by_side_where_the_hardware_does_and_they_fit(
    one: Claim, held: list[Claim], *, fits: bool
) -> None:
    assert one.fits(held) is fits


@given(st.lists(st.sampled_from(ALL), max_size=30))
def test_whatever_was_let_in_one_after_the_other_fits_in_any_order(coming: list[Claim]) -> None:
    held: list[Claim] = []
    for claim in coming:
        if claim.fits(held):
            held.append(claim)
    assert bool(held) is bool(coming)
    assert sum(claim.units for claim in held) <= SMS
    assert len({claim.exclusion_group for claim in held}) <= 1
    assert len(held) <= 1 or all(claim.exclusion_group for claim in held)
    for order in itertools.islice(itertools.permutations(held), 20):
        assert all(claim.fits(order[:number]) for number, claim in enumerate(order))


@given(st.lists(st.sampled_from(ALL), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_first_come_first_served_lets_everybody_in(coming: list[Claim], chance: random.Random) -> None:
    """The queue of the gate: only the first looks, and whoever holds a claim ends some time."""
    queue, held = list(coming), list[Claim]()
    for _ in range(2 * len(coming)):
        if queue and queue[0].fits(held):
            held.append(queue.pop(0))
        elif held:
            held.pop(chance.randrange(len(held)))
    assert queue == []


A_QUARTER = Claim("mps", 32, 132)
LONG_S = 3600.0
PIECES = 8

_KEEP = """
import sys
from pathlib import Path
from fractune_workers.locks.gpu_slots import ALONE
from fractune_workers.locks.gpu_slots import GpuTurns
turns = GpuTurns(Path(sys.argv[1]), sys.argv[2], turn_s=3600)
with turns.holding(ALONE):
    pass
print("kept", flush=True)
sys.stdin.read()
"""


class Other:
    """A measurer that waits for the GPU once, in a thread."""

    def __init__(self, folder: Path, claim: Claim) -> None:
        self.is_in, self.leaves = threading.Event(), threading.Event()
        self._slots, self._claim = GpuSlots(folder, GPU), claim
        self._thread = threading.Thread(target=self._measure)
        self._thread.start()

    def _measure(self) -> None:
        with self._slots.holding(self._claim):
            self.is_in.set()
            assert self.leaves.wait(30)

    def leave(self) -> None:
        self.leaves.set()
        self._thread.join(30)
        assert self.is_in.is_set()


def claims(folder: Path) -> int:
    return len(list((folder / f"gpu-{GPU}").glob("claim-*")))


def test_pieces_follow_each_other_though_another_claim_waits(tmp_path: Path) -> None:
    turns = GpuTurns(tmp_path, GPU, LONG_S)
    with turns.holding(ALONE):
        other = Other(tmp_path, A_QUARTER)
        wait_until(lambda: queued(tmp_path))
    for _ in range(PIECES):
        with turns.holding(ALONE):
            assert not other.is_in.is_set()
    assert turns.under_way
    turns.end()
    assert other.is_in.wait(30)
    other.leave()
    assert claims(tmp_path) == 0


def test_a_turn_ends_with_the_piece_that_ends_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(gpu_slots, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep))
    turns = GpuTurns(tmp_path, GPU, 2.0)
    kept = []
    for ends_s in (100.5, 101.9, 102.0):
        with turns.holding(ALONE):
            now_s = ends_s
        kept.append(turns.under_way)
    assert kept == [True, True, False]


def test_a_turn_that_is_over_does_not_go_on_after_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(gpu_slots, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep))
    turns = GpuTurns(tmp_path, GPU, 2.0)
    with turns.holding(ALONE):
        other = Other(tmp_path, ALONE)
        wait_until(lambda: queued(tmp_path))
    now_s = 103.0

    def go_on() -> None:
        with turns.holding(ALONE):
            pass

    thread = threading.Thread(target=go_on)
    thread.start()
    assert other.is_in.wait(30), "the other one has waited for longer"
    other.leave()
    thread.join(30)
    assert turns.under_way
    turns.end()


def test_another_claim_is_not_measured_under_the_kept_one(tmp_path: Path) -> None:
    turns = GpuTurns(tmp_path, GPU, LONG_S)
    with turns.holding(A_QUARTER):
        beside = Other(tmp_path, A_QUARTER)
        assert beside.is_in.wait(30)
    validation = threading.Event()

    def validate() -> None:
        with turns.holding(ALONE):
            validation.set()

    thread = threading.Thread(target=validate)
    thread.start()
    wait_until(lambda: queued(tmp_path))
    assert not validation.is_set()
    beside.leave()
    thread.join(30)
    assert validation.is_set()
    turns.end()


def test_a_piece_that_raises_ends_the_turn(tmp_path: Path) -> None:
    turns = GpuTurns(tmp_path, GPU, LONG_S)
    with pytest.raises(RuntimeError), turns.holding(ALONE):
        raise RuntimeError
    assert claims(tmp_path) == 0


def test_neighbours_are_those_of_each_piece(tmp_path: Path) -> None:
    turns = GpuTurns(tmp_path, GPU, LONG_S)
    with turns.holding(A_QUARTER) as first:
        beside = Other(tmp_path, A_QUARTER)
        assert beside.is_in.wait(30)
    with turns.holding(A_QUARTER) as second:
        pass
    beside.leave()
    with turns.holding(A_QUARTER) as third:
        pass
    turns.end()
    assert [slot.co_runners for slot in (first, second, third)] == [1, 1, 0]


def test_a_process_that_dies_between_two_pieces_keeps_nothing(tmp_path: Path) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", _KEEP, str(tmp_path), GPU], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "kept\n"
        other = Other(tmp_path, A_QUARTER)
        wait_until(lambda: queued(tmp_path))
        assert not other.is_in.is_set()
    finally:
        keeper.kill()
        keeper.communicate()
    assert other.is_in.wait(30)
    other.leave()


def test_measurers_with_endless_work_alternate(tmp_path: Path) -> None:
    """Nobody starves: each has a turn within the turns of the others."""
    ended, lock, order = threading.Event(), threading.Lock(), list[str]()

    def work(name: str, claim: Claim) -> None:
        turns = GpuTurns(tmp_path, GPU, turn_s=0.05)
        while not ended.is_set():
            with turns.holding(claim), lock:
                order.append(name)
            time.sleep(0.001)
        turns.end()

    each = {"whole": ALONE, "quarter 1": A_QUARTER, "quarter 2": A_QUARTER}
    threads = [threading.Thread(target=work, args=named) for named in each.items()]
    for thread in threads:
        thread.start()

    def turns_of(name: str) -> int:
        with lock:
            alone = [each == "whole" for each in order]
        wanted = name == "whole"
        return sum(now == wanted and before != wanted for before, now in itertools.pairwise(alone))

    try:
        wait_until(lambda: min(turns_of("whole"), turns_of("quarters")) >= 3)
    finally:
        ended.set()
        for thread in threads:
            thread.join(30)
    turns = turns_of("whole") + turns_of("quarters")
    assert len(order) > 3 * turns, "a turn has several pieces"
    assert {*order} == {*each}
    assert claims(tmp_path) == 0
