"""A model follows its limits: when it looks, when it stays as it is, and what it does when it cannot follow."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fractune
from fractune import Model
from fractune_core.errors import BadBundle
from fractune_runtime import runner
from fractune_runtime.model import LOOK_S
from tests.support.processes.forked import succeeds_in_child
from tests.unit.conftest import Small
from tests.unit.runtime.conftest import Clock


def test_it_looks_once_in_a_while(
    small: Small, two_cpus: list[int], later: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.sched_setaffinity(0, two_cpus)
    model = fractune.load(small.bundle)
    looks = []

    def look() -> tuple[str, ...]:
        looks.append("look")
        return ("as before",)

    monkeypatch.setattr(model._backend, "limits", look)
    for _ in range(3):
        later(LOOK_S)
        for _ in range(5):
            model.run(model.random_inputs())
    assert len(looks) == 3
    assert model.threads == 2


def calls_of(model: Model) -> list[Callable[[], Any]]:
    inputs, bound = model.random_inputs(), model.bind()
    strided = {name: np.repeat(array, 2, axis=3)[..., ::2] for name, array in inputs.items()}
    return [
        lambda: model.run(inputs),
        lambda: model.run(strided),
        lambda: model.run_tensors(inputs),
        bound.run,
    ]


@pytest.mark.parametrize("number", range(4))
def test_each_kind_of_call_follows_the_affinity(small: Small, two_cpus: list[int], later: Clock, number: int) -> None:
    os.sched_setaffinity(0, two_cpus)
    model = fractune.load(small.bundle)
    call = calls_of(model)[number]
    for cpus in (two_cpus[:1], two_cpus):
        os.sched_setaffinity(0, cpus)
        later(LOOK_S)
        call()
        assert (model.choice.variant, model.threads, model.share.cpus) == (f"cpu:{len(cpus)}", len(cpus), tuple(cpus))


def test_a_requested_share_is_left_alone(small: Small, two_cpus: list[int], later: Clock) -> None:
    os.sched_setaffinity(0, two_cpus)
    model = fractune.load(small.bundle, share="cpu:2")
    os.sched_setaffinity(0, two_cpus[:1])
    later(LOOK_S)
    model.run(model.random_inputs())
    assert (model.choice.variant, model.threads) == ("cpu:2", 2)


def test_a_model_goes_on_where_threads_cannot_be_started(
    small: Small, two_cpus: list[int], later: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("Resource temporarily unavailable")

    os.sched_setaffinity(0, two_cpus[:1])
    model = fractune.load(small.bundle)
    inputs = model.random_inputs()
    expected = model.run(inputs)
    monkeypatch.setattr(runner, "use_cpus", refuse)
    os.sched_setaffinity(0, two_cpus)
    later(LOOK_S)
    with pytest.warns(RuntimeWarning, match=r"2 threads of a model cannot be started \(Resource temporarily"):
        model.run(inputs)
    np.testing.assert_allclose(model.run(inputs), expected, rtol=1e-5)
    assert model.threads == 1


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_child_that_is_forked_during_a_call_does_not_wait_for_it(
    small: Small, two_cpus: list[int], cpus: int
) -> None:
    os.sched_setaffinity(0, two_cpus[:cpus])
    model = fractune.load(small.bundle)
    inputs = model.random_inputs()
    model.run(inputs)
    inside, may_go = threading.Event(), threading.Event()

    def work() -> None:
        inside.set()
        may_go.wait(60)

    caller = threading.Thread(target=model._runner.call, args=(work,))
    with model._turn.lock, model._follower._turn:
        caller.start()
        assert inside.wait(60)
        answered = succeeds_in_child(lambda: model.run(inputs))
    may_go.set()
    caller.join()
    assert answered


def test_a_request_does_not_fail_where_the_model_cannot_follow(
    small: Small, two_cpus: list[int], later: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise BadBundle("the file has changed")

    os.sched_setaffinity(0, two_cpus)
    model = fractune.load(small.bundle)
    inputs = model.random_inputs()
    monkeypatch.setattr(model._backend, "load_variant", refuse)
    os.sched_setaffinity(0, two_cpus[:1])
    later(LOOK_S)
    with pytest.warns(
        RuntimeWarning, match=r"runs as before, though the share of the process has changed: the file has"
    ) as warned:
        model.run(inputs)
    assert warned[0].filename == __file__
    later(LOOK_S)
    model.run(inputs)
    assert model.threads == 2
