"""A process that times models: a wait for the cores of another measurement is reported, and inputs fit the model."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import onnx
import pytest

from fractune.comparing import beside
from fractune.local import timing_process
from fractune.local.timing_process import calls_of, noting_a_wait, open_child
from fractune_core.errors import BadRequest
from fractune_core.files.compared import ONNX_RUNTIME, Compared
from fractune_workers.locks import core_locks
from fractune_workers.locks.core_locks import CoreLocks
from tests.support.encoders import WORDS
from tests.support.processes.forked import succeeds_in_child
from tests.support.processes.redis_process import wait_until
from tests.support.real_bundle import ENCODER


def test_the_holder_of_the_cores_is_named_while_this_process_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(timing_process, "_WAIT_NOTED_S", 0.1)
    monkeypatch.setattr(core_locks, "_WAIT_NOTED_S", 0.01)
    lines: list[str] = []
    waiting, holding = CoreLocks(tmp_path, 8), CoreLocks(tmp_path, 8)

    def measure() -> None:
        with noting_a_wait(waiting, lines.append), waiting.measuring([0]):
            pass

    thread = threading.Thread(target=measure)
    with holding.measuring([0]):
        thread.start()
        wait_until(lambda: lines != [])
    thread.join(30)
    assert lines == [f"waiting for the measurement cores, held by PID {os.getpid()} of another stack"]


def test_contenders_get_ids_of_the_tables_and_masks_of_ones(encoders: Path) -> None:
    asked: dict[str, Any] = {}

    def compare(_model: Any, requests: list[dict[str, Any]], *_: Any) -> tuple[Compared, dict[str, Any]]:
        asked.update(requests[0])
        return Compared({}), {}

    def ask() -> bool:  # in a process of its own, because it is confined
        beside.time_beside_runtimes = compare  # type: ignore[assignment]
        methods = open_child(["cpu:1", str(min(os.sched_getaffinity(0)))])
        bundle, onnx = str(encoders / f"{ENCODER}-1x16.fractune"), str(encoders / f"{ENCODER}.onnx")
        methods["compare"](bundle=bundle, member=None, onnx=onnx, runtimes=[], repeats=6, exact=True)
        return bool(1 < asked["ids"].max() < WORDS and (asked["mask"] == 1).all())

    assert succeeds_in_child(ask)


def test_an_input_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    ((threads, call),) = calls_of(ONNX_RUNTIME, str(tmp_path / "m.onnx"), [1], {"x": [2]})[1]
    assert threads == 1
    assert call()[0].shape == (2,)
    with pytest.raises(BadRequest, match=r"^--input 'z': no such input; the inputs are x$"):
        calls_of(ONNX_RUNTIME, str(tmp_path / "m.onnx"), [1], {"x": [2], "z": [2]})
