"""Where kernels run and how their results come back. The CPU stands in for a GPU: to TVM a stream is a number there."""

import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, strategies as st

from fractune_core.errors import FractuneError, ShareUnavailable
from fractune_runtime.tvm_runtime.tensors import numpy_dtype
from fractune_workers.child.errors import ChildDied
from fractune_workers.children.tvm_api import processor, processor as processor_module
from fractune_workers.children.tvm_api.arrays import random_args
from fractune_workers.children.tvm_api.processor import Processor, core_times, cpu_processor

STREAM = 0x2000


def stream_here() -> int:
    return int(tvm_ffi.get_raw_stream(tvm_ffi.device("cpu:0")))


@dataclass
class NotedDevice:
    """Notes in which order it is synchronised and read; `fault` is what a kernel has left behind."""

    fault: str = ""
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "cpu:0"

    def sync(self, stream: int) -> None:
        self.notes.append(f"sync {stream:#x}")
        if self.fault:
            raise RuntimeError(f"{self.fault}\nand where in C++")


@dataclass
class NotedTensor:
    device: NotedDevice

    def numpy(self) -> str:
        self.device.notes.append("read")
        return "contents"

    def copyfrom(self, contents: Any) -> None:
        self.device.notes.append(f"write {contents}")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices and tensors of the test are called in place of TVM."""
    monkeypatch.setattr(processor_module, "_synchronise", lambda device, stream: device.sync(stream))
    monkeypatch.setattr(processor_module, "_contents", lambda tensor: tensor.numpy())
    monkeypatch.setattr(processor_module, "_copy_from", lambda tensor, array: tensor.copyfrom(array))


def lost() -> None:
    raise FractuneError("the process is lost to CUDA")


@given(
    st.sampled_from(["float32", "float16", "bfloat16", "int8", "int64", "bool"]),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_what_goes_to_the_processor_comes_back_as_it_was(dtype: str, shape: list[int], seed: int) -> None:
    processor = Processor(tvm.cpu(), STREAM)
    (made,) = random_args([["TENSOR", dtype, shape]], seed, processor)
    contents = processor.read(made)
    assert (contents.dtype, contents.shape) == (numpy_dtype(dtype), tuple(shape))
    again = processor.tensor(np.zeros_like(contents))
    processor.write(again, contents)
    assert np.array_equal(processor.read(again), contents)
    (same,) = random_args([["TENSOR", dtype, shape]], seed, cpu_processor())
    assert np.array_equal(processor.read(same), contents)


def test_what_was_read_stays_when_the_tensor_changes() -> None:
    processor = cpu_processor()
    tensor = processor.tensor(np.ones(3, "float32"))
    before = processor.read(tensor)
    processor.write(tensor, np.zeros(3, "float32"))
    assert before.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.usefixtures("noted")
def test_the_confined_stream_has_ended_before_anything_is_copied() -> None:
    """TVM's copies run on the NULL stream, which that stream does not wait for."""
    device = NotedDevice()
    processor, tensor = Processor(device, STREAM), NotedTensor(device)
    assert processor.read(tensor) == "contents"
    processor.write(tensor, "more")
    assert device.notes == ["sync 0x2000", "read", "sync 0x2000", "write more"]


@pytest.mark.usefixtures("noted")
def test_engaged_means_this_threads_kernels_go_to_the_stream_and_have_ended() -> None:
    device, seen = NotedDevice(), []
    with Processor(device, STREAM).engaged():
        seen.append(stream_here())
        other = threading.Thread(target=lambda: seen.append(stream_here()))
        other.start()
        other.join()
    assert seen == [STREAM, 0]
    assert stream_here() == 0
    assert device.notes == ["sync 0x2000"]


def test_an_error_that_leaves_the_device_alone_is_passed_on() -> None:
    with pytest.raises(ValueError, match="no such kernel"), cpu_processor().engaged():
        raise ValueError("no such kernel")


@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize("fault", ["", "an illegal memory access was encountered"])
def test_a_process_that_lost_its_device_says_so(fault: str) -> None:
    """Whether the kernel's call failed, or all seemed well until its end was waited for."""
    processor = Processor(NotedDevice(fault), STREAM, check=lost)

    def run() -> None:
        with processor.engaged():
            if not fault:
                raise RuntimeError("launch failed\nand where in C++")

    with pytest.raises(ChildDied, match=f"^{fault or 'launch failed'}; after it, the process is lost to CUDA$"):
        run()
    assert stream_here() == 0


def test_a_cpu_is_no_gpu() -> None:
    assert not cpu_processor().is_gpu
    assert Processor(tvm.cuda(0)).is_gpu


CALL_S = 1e-3
DEADLINE_S = 30.0


@dataclass
class Clocks:
    """A kernel of CALL_S, and the two clocks that tick while it runs."""

    thread_s: float = 0.0
    timed_stalls_s: list[float] = field(default_factory=list)
    """how long the thread was kept from its core, by repeat; none after the last"""
    overhead_s: float = 0.0
    """on the core, beside the calls"""
    asked: list[int] = field(default_factory=list)

    def evaluate(self, calls: int) -> float:
        self.asked.append(calls)
        self.thread_s += (calls + 1) * CALL_S + self.overhead_s
        stall_s = self.timed_stalls_s.pop(0) if self.timed_stalls_s else 0.0
        return CALL_S + stall_s / calls


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr("fractune_workers.children.tvm_api.processor.time.thread_time", lambda: made.thread_s)
    return made


def test_what_the_thread_was_kept_from_its_core_for_does_not_count(clocks: Clocks) -> None:
    clocks.timed_stalls_s = [0.0, 0.5, 0.02]
    assert core_times(clocks.evaluate, 4, 0.01, calls=10) == pytest.approx([CALL_S] * 4)


def test_undisturbed_it_is_the_wall_clock_without_what_is_beside_the_calls(clocks: Clocks) -> None:
    clocks.overhead_s = 0.004
    assert core_times(clocks.evaluate, 3, 0.01, calls=10) == pytest.approx([CALL_S] * 3)


def test_a_repeat_that_is_too_short_is_made_again_and_longer(clocks: Clocks) -> None:
    run_secs = core_times(clocks.evaluate, 3, 0.01)
    assert len(run_secs) == 3
    assert clocks.asked == [1, 11, 11, 11]


def test_a_stall_makes_no_repeat_long_enough(clocks: Clocks) -> None:
    """The wall clock alone would have taken the first, which is a single call."""
    clocks.timed_stalls_s = [1.0]
    core_times(clocks.evaluate, 2, 0.01)
    assert clocks.asked == [1, 11, 11]


def test_warm_ups_are_dropped(clocks: Clocks) -> None:
    clocks.overhead_s = 0.022
    clocks.timed_stalls_s = [1.0]  # in the warm-up, where the overhead of the calls shows: it is dropped
    assert core_times(clocks.evaluate, 2, 0.01, calls=10, warmups=1) == pytest.approx([CALL_S] * 2)
    assert clocks.asked == [10] * 3


def test_what_takes_long_warms_up_with_the_call_before_it(clocks: Clocks) -> None:
    assert len(core_times(clocks.evaluate, 3, CALL_S / 2, warmups=1)) == 3
    assert clocks.asked == [1] * 3


def test_a_kernel_too_short_for_the_clocks_ends(clocks: Clocks) -> None:
    asked: list[int] = []

    def evaluate(calls: int) -> float:
        asked.append(calls)
        clocks.thread_s += (calls + 1) * 1e-9 if calls > 1000 else 0.0
        return 1e-9

    assert core_times(evaluate, 1, 1e-4) == pytest.approx([1e-9])
    assert asked[-1] * 1e-9 >= 1e-4


def test_a_busy_process_on_the_same_core_does_not_count() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    walls_s: list[float] = []

    def evaluate(calls: int) -> float:
        spin()
        began = time.perf_counter()
        for _ in range(calls):
            spin()
        walls_s.append((time.perf_counter() - began) / calls)
        return walls_s[-1]

    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:  # it inherits the core
            try:
                deadline, ratio = time.monotonic() + DEADLINE_S, 1.0
                while ratio > 0.8 and time.monotonic() < deadline:
                    walls_s.clear()
                    core_s = statistics.median(core_times(evaluate, 5, 0.02, calls=20))
                    ratio = core_s / statistics.median(walls_s)
            finally:
                busy.kill()
    finally:
        os.sched_setaffinity(0, allowed)
    assert ratio <= 0.8


def spin() -> None:
    """About a millisecond of work."""
    sum(range(50_000))


def test_a_stream_that_is_not_taken_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ffi.get_raw_stream", lambda _device: 0)
    with (
        pytest.raises(ShareUnavailable, match="launches on stream 0x0, not on 0x2000"),
        processor.launching_on(0x2000, "cpu:0"),
    ):
        pass
