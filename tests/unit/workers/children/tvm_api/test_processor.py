"""Where kernels run and how their results come back. The CPU stands in for a GPU: to TVM a stream is a number there."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.errors import FractuneError
from fractune_runtime.tvm_runtime.tensors import numpy_dtype
from fractune_workers.child.errors import ChildDied
from fractune_workers.children.tvm_api import processor as processor_module
from fractune_workers.children.tvm_api.arrays import random_args
from fractune_workers.children.tvm_api.processor import Processor, cpu_processor

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


def test_a_thread_of_its_own_can_be_engaged() -> None:
    seen: list[int] = []

    def serve() -> None:
        with Processor(NotedDevice(), STREAM).engaged():
            seen.append(stream_here())

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert (seen, stream_here()) == ([STREAM], 0)


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
