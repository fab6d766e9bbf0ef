"""A model follows its limits: when it looks, when it stays as it is, and what it does when it cannot follow."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fractune
from fractune import Model
from fractune.inference.following import LOOK_S
from fractune_core.errors import BadBundle
from tests.unit.client.conftest import Small
from tests.unit.client.inference.conftest import Clock


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
