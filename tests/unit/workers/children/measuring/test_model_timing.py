"""Whole models on a processor: what a client would wait for is waited for, and what is read has been computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tvm

from fractune_workers.children.measuring import model_timing
from fractune_workers.children.tvm_api.bundle_runs import outputs_of
from fractune_workers.children.tvm_api.processor import Processor
from fractune_workers.children.tvm_api.weights import pack_weights, unpack_weights


@dataclass
class NotedDevice:
    notes: list[str] = field(default_factory=list)

    def sync(self, stream: int) -> None:
        self.notes.append(f"sync {stream:#x}")


@dataclass
class NotedOutput:
    name: str
    notes: list[str]

    def numpy(self) -> str:
        self.notes.append(f"read {self.name}")
        return self.name


def test_every_inference_of_a_repeat_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = NotedDevice()
    clock = iter([0.0, 0.008, 0.016, 0.024])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    call = model_timing.call_of(lambda *args: device.notes.append(f"call {args}"), [1, 2], Processor(device, 0x2000))
    secs = model_timing.secs_of_one(call)
    assert secs == pytest.approx(0.008)
    assert device.notes == ["call (1, 2)", "sync 0x2000"] * 3


def test_outputs_are_read_once_they_are_there_however_they_are_nested() -> None:
    device = NotedDevice()
    first, second = (NotedOutput(name, device.notes) for name in ("first", "second"))
    assert outputs_of((first, (second,)), Processor(device, 0x2000)) == ["first", "second"]
    assert device.notes == ["sync 0x2000", "read first", "sync 0x2000", "read second"]


def test_weights_are_put_where_the_model_runs() -> None:
    placed: list[Any] = []

    def place(array: Any) -> Any:
        placed.append(array)
        return tvm.runtime.tensor(array)

    weights = [tvm.runtime.tensor(np.arange(count, dtype="float32")) for count in (3, 70)]
    unpacked = unpack_weights(*pack_weights(weights), place)
    assert [each.numpy().tolist() for each in unpacked] == [each.numpy().tolist() for each in weights]
    assert [each.tolist() for each in placed] == [each.numpy().tolist() for each in weights]
