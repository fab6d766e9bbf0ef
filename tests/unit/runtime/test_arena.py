"""Runs by a plan: no memory is allocated in a run, and huge pages hold what is large."""

import ctypes
import mmap
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fractune
from fractune_core.errors import FractuneError
from fractune_runtime.tvm_runtime.arena import Planned
from fractune_runtime.tvm_runtime.runtime import lasting_bytes
from tests.support.real_bundle import Small

MIB = 1 << 20


RUNS = 200
LEAST_BLOCK = 16
"""bytes of the C library's smallest piece of memory"""


class Heap(ctypes.Structure):
    """The C library's `mallinfo2`."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in ("arena", *"abc", "mapped", *"de", "used", *"fg"))


MALLINFO = ctypes.CDLL(None).mallinfo2
MALLINFO.restype = Heap


def grown(run: Callable[[], object]) -> tuple[int, int]:
    """Bytes that so many runs have allocated and kept, and their page faults."""
    for _ in range(20):
        run()
    heap, faults = MALLINFO(), resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(RUNS):
        run()
    more_faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
    after = MALLINFO()
    return after.used + after.mapped - heap.used - heap.mapped, more_faults


def expect_nothing_grown(run: Callable[[], object]) -> None:
    # Linux may move pages meanwhile, and a thread of Python's allocate: not in all of five tries.
    tries = [grown(run) for _ in range(5)]
    assert min(faults for _, faults in tries) == 0, tries
    assert min(allocated for allocated, _ in tries) < RUNS * LEAST_BLOCK, tries


def test_a_run_allocates_nothing_that_stays_and_has_no_page_fault(small: Small) -> None:
    model = fractune.load(small.bundle, share="cpu:1")
    assert isinstance(model._variant(None), Planned)
    inputs = model.random_inputs()
    for run in (model.bind().run, lambda: model.run(inputs)):
        expect_nothing_grown(run)


def test_a_step_of_a_decoder_allocates_nothing_that_stays_and_has_no_page_fault(decoders: Path) -> None:
    model = fractune.load(decoders / "decoder-16-1.fractune", share="cpu:1")
    assert isinstance(model._variant(None).cached, Planned)
    session = model.decoder()
    logits = session.step(1)

    def step() -> None:
        if session.length == session.capacity:
            session.reset()
        session.step(2, out=logits)

    expect_nothing_grown(step)


def test_outputs_of_a_run_are_not_overwritten(small: Small) -> None:
    model = fractune.load(small.bundle, share="cpu:1")
    first, second = model.random_inputs(1), model.random_inputs(2)
    (expected,) = (each.copy() for each in model.run(first))
    (kept,), (tensor,) = model.run(first), model.run_tensors(first)
    for run in (model.run, model.run_tensors):
        assert not np.array_equal(np.from_dlpack(run(second)[0]), expected)
    np.testing.assert_array_equal(kept, expected)
    np.testing.assert_array_equal(np.from_dlpack(tensor), expected)


@pytest.mark.parametrize("size", [1, 4096, 2 * MIB, 5 * MIB + 1])
def test_memory_that_stays_is_aligned_and_zero(size: int) -> None:
    memory = lasting_bytes(size)
    assert memory.nbytes == size
    assert not memory.any()
    assert memory.ctypes.data % (2 * MIB if size >= 2 * MIB else 64) == 0


def test_memory_that_stays_asks_for_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[int] = []

    class Pages(mmap.mmap):
        def madvise(self, option: int, *_: int) -> None:
            advised.append(option)
            raise OSError("a kernel without them")

    monkeypatch.setattr(mmap, "mmap", Pages)
    assert lasting_bytes(3 * MIB).nbytes == 3 * MIB
    assert advised == [mmap.MADV_HUGEPAGE]


def test_memory_that_is_not_there_is_one_line() -> None:
    with pytest.raises(FractuneError, match=r"no memory for \d+ MiB"):
        lasting_bytes(1 << 60)
