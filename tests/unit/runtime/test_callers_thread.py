"""Calls on the caller's thread: without a pool, without moving it, and one at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import fractune
from fractune_runtime import runner
from fractune_runtime.runner import CallersThread
from fractune_runtime.tvm_runtime.runtime import load_runtime
from tests.support.paths import REPOSITORY
from tests.unit.conftest import Small

load_runtime()


def limit() -> int:
    return int(runner.thread_limit()[0]())


def test_a_thread_has_its_own_limit_again_after_a_call() -> None:
    before = limit()

    def fail() -> None:
        assert limit() == 1
        raise KeyError("as it is")

    caller = CallersThread()
    assert caller.call(limit) == 1
    with pytest.raises(KeyError, match="as it is"):
        caller.call(fail)
    assert limit() == before


def test_calls_come_one_at_a_time_and_the_end_of_the_process_waits_for_one() -> None:
    calls, inside, may_go, ended = CallersThread(), threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        inside.set()
        may_go.wait(60)
        ended.append("call")

    caller = threading.Thread(target=calls.call, args=(work,))
    caller.start()
    assert inside.wait(60)

    def stop() -> None:
        calls.stop()
        ended.append("stop")

    stopper = threading.Thread(target=stop)
    stopper.start()
    may_go.set()
    for each in (caller, stopper):
        each.join(60)
    assert ended == ["call", "stop"]


SAME_THREAD = """
import json, os, sys
import fractune, numpy
model = fractune.load(sys.argv[1], share="cpu:1")
inputs = model.random_inputs()
before = {thread: os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")}
for variant in ("cpu:1", "cpu:2", "untuned"):
    model.run(inputs, variant)
after = {thread: os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")}
print(json.dumps(before == after))
"""


@pytest.mark.parametrize("threads", ["", "1", "7"])
def test_a_share_of_one_core_starts_no_thread_and_moves_none(small: Small, threads: str) -> None:
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    if threads:
        environment["TVM_NUM_THREADS"] = threads
    command = [sys.executable, "-c", SAME_THREAD, str(small.bundle)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) is True


def test_without_the_limit_a_model_has_a_thread_again(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = fractune.load(small.bundle).random_inputs()
    (expected,) = fractune.load(small.bundle, share="cpu:1").run(inputs)
    monkeypatch.setattr(runner, "thread_limit", tuple)
    model = fractune.load(small.bundle, share="cpu:1")
    assert not isinstance(model._runner, CallersThread)
    np.testing.assert_array_equal(model.run(inputs)[0], expected)
