"""What is read of the kernel's counters: in a made-up tree, and beside a real process on the same core."""

import hashlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tvm

from fractune_core.records import TRIAL_POLICY, VALIDATION_POLICY, Disturbance
from fractune_workers.children.measuring.counters import Counters, CpuMeter, KernelCounters
from fractune_workers.children.tvm_api.processor import Processor
from fractune_workers.measuring.session import LOSS_ALLOWED
from tests.support.hardware.cgroup_tree import a_host
from tests.support.hardware.real_cgroup import capped_cgroup

DEADLINE_S = 30.0
QUOTA = {"cpu_max": "50000 100000"}


def tell(
    root: Path, *, steal: int, user: int = 0, waited_ns: int = 0, throttled: int = 0, khz: int = 3_000_000
) -> None:
    """Core 1 of two as the made-up kernel shows it; what the other core counts must not count."""
    other = "900 900 900 900 900 900 900 900 0 0"
    core = f"{user} 0 0 5000 70 0 0 {steal} 0 0"
    (root / "proc/stat").write_text(f"cpu  {other}\ncpu0 {other}\ncpu1 {core}\nintr 12345\n")
    task = root / "proc/self/task/77"
    task.mkdir(parents=True, exist_ok=True)
    (task / "schedstat").write_text(f"123 {waited_ns} 7\n")
    (root / "sys/fs/cgroup/cpu.stat").write_text(f"nr_throttled {throttled}\nthrottled_usec {throttled * 30_000}\n")
    clock = root / "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq"
    clock.parent.mkdir(parents=True, exist_ok=True)
    clock.write_text(f"{khz}\n")


def test_what_was_stolen_of_its_own_cores_is_seen(tmp_path: Path) -> None:
    root = a_host(tmp_path, **QUOTA)
    tell(root, steal=100)
    counters = KernelCounters([1], root)
    before = counters.read()
    tell(root, steal=112, user=1000, waited_ns=40_000_000, throttled=2, khz=2_200_000)
    seen = counters.read().since(before)
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert seen.steal_s == pytest.approx(12 / ticks_per_s)
    assert seen.others_s == pytest.approx(1000 / ticks_per_s, abs=1.0)  # less what this process used meanwhile
    assert seen.waited_s == pytest.approx(0.04)
    assert seen.throttles == 2
    assert seen.throttled_s == pytest.approx(0.06)
    assert seen.clock_mhz == 2200


def test_a_system_that_shows_nothing_counts_nothing(tmp_path: Path) -> None:
    counters = KernelCounters([0], tmp_path)
    before = counters.read()
    seen = counters.read().since(before)
    assert (seen.steal_s, seen.others_s, seen.waited_s) == (0.0, 0.0, 0.0)
    assert (seen.throttles, seen.throttled_s, seen.clock_mhz) == (0, 0.0, 0)
    assert seen.wall_s > 0


def test_what_disturbs_a_reading_lies_within_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One made-up second passes with each look at the clock: the readings themselves take time too."""
    root = a_host(tmp_path, **QUOTA)
    tell(root, steal=0)
    seconds = itertools.count()
    monkeypatch.setattr("fractune_workers.children.measuring.counters.time.perf_counter", lambda: next(seconds))
    counters = KernelCounters([1], root)
    before = counters.read()  # from 0 to 1
    assert counters.read().since(before).wall_s == 3  # to 3


@pytest.fixture
def core() -> Iterator[int]:
    """The core that this thread has to itself in this process, until the test ends."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield min(allowed)
    os.sched_setaffinity(0, allowed)


def seen_while(counters: KernelCounters, before: Counters, wanted: str) -> Disturbance:
    """What is seen by a thread that computes without a pause, once `wanted` is above 0, or after DEADLINE_S."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        seen = counters.read().since(before)
        if (getattr(seen, wanted) > 0 and seen.lost > LOSS_ALLOWED) or time.monotonic() > deadline:
            return seen


@pytest.mark.parametrize("wanted", ["preemptions", "waited_s", "others_s", "off_core_s"])
def test_a_busy_process_on_the_same_core_is_seen(core: int, wanted: str) -> None:
    counters = KernelCounters([core])
    before = counters.read()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:  # it inherits the core
        try:
            seen = seen_while(counters, before, wanted)
        finally:
            busy.kill()
    assert getattr(seen, wanted) > 0
    assert seen.lost > LOSS_ALLOWED


def test_time_asleep_on_an_idle_core_is_no_wait(core: int) -> None:
    """What the process does not do by itself is seen as lost; but only where it could have run did it wait. Other
    programs may use the core: it is idle at some time.
    """
    counters, deadline = KernelCounters([core]), time.monotonic() + DEADLINE_S
    while True:
        before = counters.read()
        subprocess.run([sys.executable, "-c", "import time; time.sleep(0.3)"], check=True)
        seen = counters.read().since(before)
        assert seen.off_core_s >= 0.3
        if seen.waited_s < seen.off_core_s - 0.2:
            break
        assert time.monotonic() < deadline


_USE_UP_THE_QUOTA = """
import time
from fractune_workers.children.measuring.counters import KernelCounters
counters = KernelCounters([])
before, deadline = counters.read(), time.monotonic() + 30
while time.monotonic() < deadline:
    seen = counters.read().since(before)
    if seen.throttles > 0 and seen.throttled_s > 0 and seen.lost > 0.1:
        print("throttled")
        break
"""


def test_a_quota_that_is_used_up_is_seen() -> None:
    with capped_cgroup(cores=0.2) as cgroup:
        assert cgroup.run(_USE_UP_THE_QUOTA) == "throttled"


CPU_S = 0.03
"""of each thread"""
SOME = b"x" * 2**16
"""Hashing it leaves other threads of the interpreter running."""
CPU = Processor(tvm.cpu())


def spend(threads: int) -> list[float]:
    """The wall time of so many threads that each spend CPU_S."""

    def work() -> None:
        began_s = time.thread_time()
        while time.thread_time() - began_s < CPU_S:
            hashlib.sha256(SOME)

    began_s = time.perf_counter()
    started = [threading.Thread(target=work) for _ in range(threads)]
    for each in started:
        each.start()
    for each in started:
        each.join()
    return [time.perf_counter() - began_s]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_time_of_all_threads_counts(threads: int) -> None:
    meter = CpuMeter(CPU)
    run_secs = meter.timed(lambda: spend(threads))
    assert meter.secs_of_one(run_secs, TRIAL_POLICY) == pytest.approx(threads * CPU_S, rel=0.15)


def test_a_pause_between_two_timings_does_not_count() -> None:
    meter = CpuMeter(CPU)
    first = meter.timed(lambda: spend(1))
    spend(2)
    assert meter.secs_of_one(first + meter.timed(lambda: spend(1)), TRIAL_POLICY) == pytest.approx(CPU_S, rel=0.3)


def test_on_one_core_the_run_times_are_cpu_times_already() -> None:
    """The wall time has interruptions there, and the run times have none."""
    meter = CpuMeter(Processor(tvm.cpu(), is_one_core=True))
    meter.timed(lambda: spend(2))
    choosing = replace(VALIDATION_POLICY, choosing=1)
    assert meter.secs_of_one([9.0, 1.0, 2.0, 3.0], choosing) == 2.0


def test_it_is_not_known_on_a_gpu_and_of_what_was_never_timed() -> None:
    on_gpu = CpuMeter(Processor(tvm.cuda(0)))
    assert on_gpu.secs_of_one(on_gpu.timed(lambda: spend(1)), TRIAL_POLICY) is None
    assert CpuMeter(CPU).secs_of_one([0.1], TRIAL_POLICY) is None
