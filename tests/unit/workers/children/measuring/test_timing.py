"""What TVM's evaluator is asked for, and what of its answer counts."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import tvm
from hypothesis import given, strategies as st

from fractune_core.records import COLD, FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY, WARM, TimingPolicy, with_cache
from fractune_workers.children.measuring.setup import Anchor
from fractune_workers.children.tvm_api import processor as processor_module
from fractune_workers.children.tvm_api.processor import Processor, cpu_processor

GPU = Processor(tvm.cuda(0), 0x2000, flush_bytes=120 << 20)
"""Nothing is run on it."""


@dataclass
class Kernel:
    """Numbers its repeats from 0 on instead of timing them."""

    asked: dict[str, Any] = field(default_factory=dict)

    def time_evaluator(self, name: str, device: Any, **asked: Any) -> Any:
        assert (name, str(device)) == ("main", "cuda:0")
        self.asked = asked
        return lambda *_args: SimpleNamespace(results=list(range(asked["repeat"])))


@pytest.fixture(autouse=True, scope="module")
def evaluator() -> Iterator[None]:
    """The kernels here have evaluators of their own."""

    def timed(kernel: Any, args: list[Any], device: Any, **how: Any) -> list[float]:
        return list(kernel.time_evaluator("main", device, **how)(*args).results)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processor_module, "_timed", timed)
        yield


@given(st.integers(0, 5), st.integers(1, 50), st.floats(0, 20), st.sampled_from([WARM, COLD]))
def test_all_repeats_after_the_warm_up_are_kept(warmups: int, repeats: int, min_ms: float, cache: str) -> None:
    kernel = Kernel()
    kept = GPU.time(kernel, [], TimingPolicy("any", warmups, repeats, min_ms, cache))
    assert len(kept) == repeats
    assert kept[-1] == kernel.asked["repeat"] - 1
    assert kept[0] >= warmups


@pytest.mark.parametrize("policy", [FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY])
def test_warm_repeats_are_long_and_nothing_is_flushed(policy: TimingPolicy) -> None:
    kernel = Kernel()
    GPU.time(kernel, [], policy, calls=100)
    assert (kernel.asked["number"], kernel.asked["cache_flush_bytes"]) == (100, 0)
    assert kernel.asked["min_repeat_ms"] == policy.min_repeat_ms >= 1


@pytest.mark.parametrize("warmups", [0, 1])
def test_a_cold_repeat_is_one_call_after_a_flush_and_the_first_never_counts(warmups: int) -> None:
    """TVM flushes once a repeat, and may begin to while its own first call still runs."""
    kernel = Kernel()
    policy = TimingPolicy("single", warmups, repeats=1, min_repeat_ms=10.0, cache=COLD)
    assert GPU.time(kernel, [], policy, calls=100) == [1.0]
    assert kernel.asked == {
        "number": 1,
        "repeat": 2,
        "min_repeat_ms": 0,
        "cache_flush_bytes": 120 << 20,
    }


def test_a_cold_policy_says_what_it_does() -> None:
    kernel = Kernel()
    policy = with_cache(TRIAL_POLICY, COLD)
    assert len(GPU.time(kernel, [], policy)) == policy.repeats
    assert kernel.asked["min_repeat_ms"] == policy.min_repeat_ms == 0


def test_a_single_core_is_timed_by_what_the_thread_spends_there_and_several_are_not() -> None:
    asked: list[dict[str, Any]] = []

    class Timed:
        def time_evaluator(self, _name: str, _device: Any, **how: Any) -> Any:
            asked.append(how)
            return lambda *_args: SimpleNamespace(results=[1.0] * how["repeat"])

    one, several = Processor(tvm.cpu(), is_one_core=True), Processor(tvm.cpu())
    kept = one.time(Timed(), [], replace(TRIAL_POLICY, min_repeat_ms=0.0), calls=2)
    assert len(kept) == TRIAL_POLICY.repeats
    assert max(kept) < 0.5  # no call took a second of a core
    assert asked == [{"number": 2, "repeat": 1}] * (TRIAL_POLICY.warmups + TRIAL_POLICY.repeats)
    assert several.time(Timed(), [], TRIAL_POLICY) == [1.0] * TRIAL_POLICY.repeats


def test_the_cores_of_this_process_decide_how_it_is_timed() -> None:
    allowed = os.sched_getaffinity(0)
    assert cpu_processor().is_one_core == (len(allowed) == 1)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cpu_processor().is_one_core
    finally:
        os.sched_setaffinity(0, allowed)


def test_an_anchor_is_compared_with_its_own_first_time() -> None:
    times = iter([2.0, 3.0, 1.0])
    anchor = Anchor(lambda: next(times))
    assert [anchor.ratio() for _ in range(3)] == [1.0, 1.5, 0.5]
