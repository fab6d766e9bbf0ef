"""Where the threads of a model may be, calls on the caller's thread, and a model that follows its limits."""

import json
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
from fractune_runtime.runner import CallersThread
from fractune_runtime.tvm_runtime.runtime import load_runtime
from tests.support.processes.forked import succeeds_in_child
from tests.support.real_bundle import Small
from tests.unit.runtime.conftest import Clock
from tests.unit.runtime.test_model import run_script as run_alone

CPUS = sorted(os.sched_getaffinity(0))
needs_two = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")

BEGIN = '''
import json, os, sys
import fractune, fractune_runtime.cpu
import numpy, fractune_runtime.tvm_runtime.runtime as runtime
from fractune_runtime.cpu import ShareHere

def affinities():
    return {thread: sorted(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}

def pool(load):
    """CPUs of each thread that a model starts, and the threads whose CPUs changed meanwhile."""
    before = affinities()
    model = load()
    model.run(model.random_inputs())
    after = affinities()
    moved = [thread for thread, cpus in before.items() if after.get(thread, cpus) != cpus]
    return sorted(cpus for thread, cpus in after.items() if thread not in before), moved

runtime.load_runtime()
'''


def run_script(script: str, *args: str) -> Any:
    return run_alone(BEGIN + script, *args)


FULL_AND_ONE = """
cpus = tuple(sorted(os.sched_getaffinity(0)))
found = []
for threads in (len(cpus), 1):
    fractune_runtime.cpu.share_here = lambda: ShareHere(threads, cpus, "made up")
    found.append(pool(lambda: fractune.load(sys.argv[1])))
model, before = fractune.load(sys.argv[1], share="cpu:1"), affinities()
for variant in ("cpu:1", "cpu:2", "untuned"):
    model.run(model.random_inputs(), variant)
print(json.dumps([*found, before == affinities()]))
"""


@pytest.mark.parametrize(("threads", "bind"), [("1", "0"), ("7", "1")])
def test_the_pool_has_a_thread_on_each_core_of_the_share_whatever_the_environment_says(
    small: Small, monkeypatch: pytest.MonkeyPatch, threads: str, bind: str
) -> None:
    for name, value in (("TVM_NUM_THREADS", threads), ("TVM_BIND_THREADS", bind)):
        monkeypatch.setenv(name, value)
    full, one, unmoved = run_script(FULL_AND_ONE, str(small.bundle))
    assert full == [[[cpu] for cpu in CPUS], []], "a CPU for each; no thread of others is moved"
    assert one == [[], []], "one thread is the caller's, and is not moved"
    assert unmoved, "nor does another variant at a share of one core start a thread, or move one"


WITHIN = """
found = []
for given in json.loads(sys.argv[2]):
    os.sched_setaffinity(0, given)
    found += [pool(lambda: fractune.load(sys.argv[1], share=share)) for share in (None, "cpu:1")]
print(json.dumps(found))
"""


def test_no_thread_leaves_the_cpus_that_the_process_was_given(small: Small) -> None:
    assert run_script(WITHIN, str(small.bundle), json.dumps([CPUS[:1], CPUS[-1:]])) == [[[], []]] * 4


LATER = """
def load():
    model = fractune.load(sys.argv[1], share=f"cpu:{os.cpu_count()}")  # else it follows, if this takes long enough
    os.sched_setaffinity(0, json.loads(sys.argv[2]))
    return model

print(json.dumps(pool(load)[0]))
"""


def test_cpus_that_were_taken_before_the_first_run_are_left_alone(small: Small) -> None:
    assert run_script(LATER, str(small.bundle), json.dumps(CPUS[-1:])) == [CPUS[-1:]]


FORKED = """
model = fractune.load(sys.argv[1])
model.run(model.random_inputs())
found = []
for given in json.loads(sys.argv[2]):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.sched_setaffinity(0, given)
        os.write(writer, json.dumps(pool(lambda: model)).encode())
        os._exit(0)
    os.wait()
    found.append(json.loads(os.read(reader, 1 << 16)))
print(json.dumps(found))
"""


@needs_two
def test_a_fork_that_was_given_fewer_cpus_keeps_to_them(small: Small) -> None:
    found = run_script(FORKED, str(small.bundle), json.dumps([CPUS[1:2], CPUS]))
    assert found == [[[CPUS[1:2]], []], [[[cpu] for cpu in CPUS], []]]


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


def test_without_the_limit_a_model_has_a_thread_again(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = fractune.load(small.bundle).random_inputs()
    (expected,) = fractune.load(small.bundle, share="cpu:1").run(inputs)
    monkeypatch.setattr(runner, "thread_limit", tuple)
    model = fractune.load(small.bundle, share="cpu:1")
    assert not isinstance(model._runner, CallersThread)
    np.testing.assert_array_equal(model.run(inputs)[0], expected)


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
