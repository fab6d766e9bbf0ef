"""Whole models on a processor: what a client would wait for is waited for."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from fractune_core.files.bundles import Bundle
from fractune_runtime import gpu, runner
from fractune_runtime.gpu import OnGpu
from fractune_runtime.tvm_runtime import runtime
from fractune_runtime.tvm_runtime.variants import Called
from fractune_workers.children.measuring import model_timing
from fractune_workers.children.tvm_api.processor import Processor
from tests.unit.conftest import Small


class GpuDevice:
    def dlpack_device_type(self) -> int:
        return OnGpu.kind[0]


def test_a_repeat_takes_the_mean_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, clock = [], iter([0.0, 0.008, 0.016, 0.024])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert runner.secs_of_one(lambda: calls.append("call")) == pytest.approx(0.008)
    assert len(calls) == 3


def test_every_inference_on_a_gpu_is_waited_for_on_the_stream_of_the_share(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    for name in ("check_host_code", "check_gpu", "_gpu_for"):
        monkeypatch.setattr(gpu, name, lambda *_: None)
    monkeypatch.setattr(OnGpu, "look", lambda _: None)
    monkeypatch.setattr(OnGpu, "_load_runtime", lambda _: None)
    monkeypatch.setattr(runtime, "synchronise", lambda device, stream: notes.append(f"sync {device} {stream:#x}"))
    backend = model_timing.backend_on(Processor(GpuDevice(), 0x2000), Bundle(small.bundle))

    def main() -> list[str]:
        notes.append("call")
        return []

    variant = Called(main)
    for _ in range(2):
        backend.run(variant, [])
    assert notes == ["call", "sync cuda:0 0x2000"] * 2


@pytest.mark.parametrize("output", [np.array([1.0, np.inf]), np.array([np.nan, 2.0]), np.array([1.0])])
def test_a_difference_that_is_infinite_is_the_largest_number(output: Any) -> None:
    """Databases keep it as JSON, which holds no infinity."""
    right = np.array([1.0, 2.0])
    found = model_timing.errors_of({"untuned": [right, right], "cpu:1": [right, output], "cpu:2": [right, 2 * right]})
    assert found == {"untuned": 0.0, "cpu:1": sys.float_info.max, "cpu:2": 1.0}


@pytest.mark.parametrize(
    ("first_s", "counts"),
    [
        ({"own": 1e-3, "untuned": 0.05}, {"own": 11, "untuned": 11}),
        ({"own": 1e-3, "untuned": 0.2}, {"own": 11, "untuned": 1}),
        ({"own": 0.15, "untuned": 0.5}, {"own": 4, "untuned": 4}),
        ({"own": 0.15, "untuned": 1.2}, {"own": 4, "untuned": 1}),
    ],
)
def test_a_slow_variant_far_behind_is_timed_once(first_s: dict[str, float], counts: dict[str, int]) -> None:
    assert model_timing._repeats(first_s, 11) == counts
