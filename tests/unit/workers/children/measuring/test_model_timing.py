"""Whole models on a processor: what a client would wait for is waited for."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm

from fractune_core.analysis.at_load import AtLoad
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import Checked
from fractune_core.shares import Share
from fractune_runtime import gpu, runner
from fractune_runtime.cpu import OnCpu
from fractune_runtime.gpu import OnGpu
from fractune_runtime.tvm_runtime import runtime
from fractune_runtime.tvm_runtime.variants import Called
from fractune_workers.children.measuring import model_timing
from fractune_workers.children.measuring.model_timing import time_at_load, time_under_limit
from fractune_workers.children.tvm_api.processor import Processor
from tests.support.real_bundle import Small


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


SHORT_S = 2e-4


def loops(**loop_s: float) -> tuple[dict[str, Callable[[], None]], dict[str, float]]:
    return {name: partial(time.sleep, secs) for name, secs in loop_s.items()}, loop_s


def test_the_fastest_answer_the_same_number_of_requests_in_each_round() -> None:
    calls, loop_s = loops(untuned=100 * SHORT_S, own=1.2 * SHORT_S, robust=SHORT_S, other=1.1 * SHORT_S)
    found = time_at_load(calls, {**loop_s, "far": 1.6 * SHORT_S}, "own", [0])
    assert [(each.variant, each.threads) for each in found] == [("own", 1), ("robust", 1), ("other", 1)]
    assert {(len(each.loop_secs), len(each.latency_secs)) for each in found} == {(11, 110)}
    assert all(secs >= SHORT_S for each in found for secs in each.latency_secs)


@pytest.mark.parametrize(("factor", "threads"), [(1, [2, 1]), (10, [2])])
def test_one_thread_is_a_finalist_unless_it_takes_much_longer(
    factor: int, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of one thread runs on its caller's. The seconds of a loop are made up: a busy machine prolongs them."""
    ran: list[threading.Thread] = []

    def secs_of_one(call: Callable[[], None], _at_least_s: float) -> float:
        call()
        return SHORT_S * (factor if ran[-1] is threading.current_thread() else 1)

    monkeypatch.setattr(model_timing, "secs_of_one", secs_of_one)
    found = time_at_load({"own": lambda: ran.append(threading.current_thread())}, {"own": SHORT_S}, "own", [0, 1])
    assert [each.threads for each in found] == threads


def test_a_slow_model_answers_fewer_requests_and_a_very_slow_one_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_timing, "_MOST_REQUESTS_S", 1.0)
    (few,) = time_at_load(*loops(own=1e-2), "own", [0])
    assert (len(few.loop_secs), len(few.latency_secs)) == (6, 12), "there is nothing to compare it with"
    monkeypatch.setattr(model_timing, "_MOST_REQUESTS_S", 0.1)
    assert time_at_load(*loops(own=1e-2), "own", [0]) == []


@pytest.mark.parametrize(("is_decided", "rounds"), [(True, 6), (False, 11)])
def test_rounds_end_once_the_choices_are_decided(
    monkeypatch: pytest.MonkeyPatch, *, is_decided: bool, rounds: int
) -> None:
    asked = []

    def decided(timed: Sequence[AtLoad], most: int) -> bool:
        asked.append((len(timed), {len(each.loop_secs) for each in timed}, most))
        return is_decided

    monkeypatch.setattr(model_timing, "are_decided", decided)
    monkeypatch.setattr(model_timing, "_MOST_REQUESTS_S", 0.5)
    found = time_at_load(*loops(own=5e-3, robust=5e-3), "own", [0])
    assert {len(each.loop_secs) for each in found} == {rounds}
    assert asked[0] == (2, {6}, 11)
    asked.clear()
    found = time_at_load(*loops(own=SHORT_S, robust=SHORT_S), "own", [0])
    assert {len(each.loop_secs) for each in found} == {11}, "a p99 needs all of them"
    assert not asked


def test_a_very_slow_model_is_not_even_called() -> None:
    def called() -> None:
        raise AssertionError

    assert time_at_load({"own": called}, {"own": 1.0}, "own", [0]) == []


def test_on_a_gpu_all_runs_on_this_thread() -> None:
    seen = set()

    def call() -> None:
        seen.add(threading.current_thread())
        time.sleep(SHORT_S)

    (found,) = time_at_load({"full": call}, {"full": SHORT_S}, "full", [])
    assert (found.variant, found.threads) == ("full", 1)
    assert seen == {threading.current_thread()}


PERIOD_S = 2e-3
CPUS = [0, 1]


def sleeps(secs: float, seen: set[str]) -> Callable[[], None]:
    def call() -> None:
        seen.add(threading.current_thread().name)
        time.sleep(secs)

    return call


def test_each_variant_has_a_thread_for_each_of_its_cores_and_the_same_requests() -> None:
    one, two = set[str](), set[str]()
    calls = {"untuned": sleeps(1.0, set()), "cpu:1": sleeps(SHORT_S, one), "cpu:2": sleeps(SHORT_S, two)}
    found = time_under_limit(calls, {"cpu:1": 1, "cpu:2": 2}, CPUS, PERIOD_S)
    assert [(each.variant, each.threads) for each in found] == [("cpu:1", 1), ("cpu:2", 2)]
    assert {len(each.loop_secs) for each in found} == {11}
    assert len({len(each.latency_secs) for each in found}) == 1
    assert len(found[0].latency_secs) >= 110
    assert one == {threading.current_thread().name}, "a model of one thread runs on its caller's"
    assert two == {"fractune-run"}


def test_a_round_has_requests_for_several_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = time_under_limit({"cpu:1": sleeps(SHORT_S, set())}, {"cpu:1": 1}, CPUS, 20 * PERIOD_S)
    requests = len(found.latency_secs) // len(found.loop_secs)
    assert 10 < requests <= 200
    monkeypatch.setattr(model_timing, "_MOST_REQUESTS", 12)
    (found,) = time_under_limit({"cpu:1": sleeps(SHORT_S, set())}, {"cpu:1": 1}, CPUS, 20 * PERIOD_S)
    assert len(found.latency_secs) == 12 * 11


def test_a_slow_model_has_fewer_requests_and_at_least_one_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_timing, "_MOST_S", 0.01)
    (found,) = time_under_limit({"cpu:1": sleeps(0.005, set())}, {"cpu:1": 1}, CPUS, PERIOD_S)
    assert (len(found.loop_secs), len(found.latency_secs)) == (6, 6)
