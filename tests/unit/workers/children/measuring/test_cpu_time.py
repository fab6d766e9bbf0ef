"""The CPU time of kernels, by threads that spend a known CPU time whatever else the machine does."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import replace

import pytest
import tvm

from fractune_core.records import TRIAL_POLICY, VALIDATION_POLICY
from fractune_workers.children.measuring.counters import CpuMeter
from fractune_workers.children.tvm_api.processor import Processor

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
