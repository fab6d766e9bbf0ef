"""Whole models on a processor: what a client would wait for is waited for."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tvm

from fractune_core.analysis.at_load import AtLoad
from fractune_core.files.bundles import Bundle
from fractune_core.files.checked import Checked
from fractune_core.shares import Share
from fractune_runtime import gpu, runner
from fractune_runtime.cpu import OnCpu
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


_EQUAL = Checked("ONNX Runtime", {"random": 0.0})


@pytest.mark.parametrize(
    ("share", "checked", "sum_s", "ran"),
    [
        ("cpu:1", _EQUAL, 18.0, False),
        ("cpu:1", _EQUAL, 0.9, True),
        ("cpu:1", Checked(), 18.0, True),
        ("cpu:500m@2", _EQUAL, 18.0, False),
        ("cpu:500m@2", None, 18.0, True),
    ],
)
def test_an_untuned_variant_with_operators_far_behind_runs_only_as_the_sole_reference(
    small: Small, monkeypatch: pytest.MonkeyPatch, share: str, checked: Checked | None, sum_s: float, *, ran: bool
) -> None:
    runs, held = Counter[str](), OnCpu.held
    names, load = dict[int, str](), OnCpu.load_variant

    def named(self: OnCpu, name: str) -> Any:
        variant = load(self, name)
        names[id(variant)] = name
        return variant

    def counted(self: OnCpu, variant: Any, arguments: Any) -> Any:
        runs[names[id(variant)]] += 1
        return held(self, variant, arguments)

    def under_limit(_: object, threads: Mapping[str, int], *__: object) -> list[AtLoad]:
        return [AtLoad(name, count, (1.0,), (1.0,)) for name, count in threads.items()]

    monkeypatch.setattr(OnCpu, "load_variant", named)
    monkeypatch.setattr(OnCpu, "held", counted)
    monkeypatch.setattr(model_timing, "checked_of", lambda _: checked)
    monkeypatch.setattr(Bundle, "untuned_sum_s", lambda _, at: {share: sum_s}[at])
    monkeypatch.setattr(model_timing, "_MOST_REQUESTS_S", 0.02)
    monkeypatch.setattr(model_timing, "time_under_limit", under_limit)
    cpu = Processor(tvm.cpu())
    if share == "cpu:1":
        timed = model_timing.time_variants(small.bundle, 3, share, cpu)
    else:
        timed = model_timing.time_variants_under(Share.parse(share), small.bundle, cpu)
    assert ("untuned" in runs, "untuned" in timed["run_secs"], "untuned" in timed["max_error"]) == (ran, ran, ran)
    assert timed["untuned_sum_s"] == (0.0 if ran else sum_s)
    assert {"cpu:1", "cpu:2"} <= timed["run_secs"].keys() & runs.keys()


def test_untuned_operators_that_are_slow_and_not_far_behind_let_the_model_run() -> None:
    assert not model_timing.is_too_slow(18.0, {"cpu:1": 2.0})
    assert not model_timing.is_too_slow(18.0, {})
