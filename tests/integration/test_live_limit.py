"""A model that serves several threads while the limit of its real cgroup, or its affinity, changes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hardware.real_cgroup import capped_cgroup
from tests.support.real_bundle import compile_small

_TIMES = {"cpu:1": 0.0184, "cpu:2": 0.0096}
_SERVE = """
import json, os, threading, time
import fractune, numpy

cpus = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, cpus)
model = {load}({bundle!r}{options})
inputs = model.random_inputs()
(expected,) = model.run(inputs)
answers, wrong, done = [], [], threading.Event()

def serve():
    while not done.is_set():
        try:
            (output,) = model.run(inputs)
            numpy.testing.assert_allclose(output, expected, rtol=1e-5)
            answers.append(1)
        except BaseException as error:
            wrong.append(repr(error))

def number_of():
    "Threads of the model, or of all replicas."
    return model.threads * getattr(model, "replicas", 1)

def limit(quota_us):
    with open({quota_file!r}, "w") as file:
        file.write(str(quota_us))

def pin(count):
    os.sched_setaffinity(os.getpid(), cpus[:count])

def followed(change, number, threads):
    "The seconds until the model has so many threads; at most 20."
    change(number)
    began = time.monotonic()
    while number_of() != threads and time.monotonic() < began + 20:
        time.sleep(0.002)
    return [time.monotonic() - began, model.choice.variant, number_of()]

servers = [threading.Thread(target=serve) for _ in range(4)]
for each in servers:
    each.start()
before = model.choice.variant
found = [{changes}]
done.set()
for each in servers:
    each.join()
print(json.dumps([before, found, len(answers), wrong]))
"""
_WITHIN_S = 1.0

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")


_MODEL, _POOL = ("fractune.load", ", goal='throughput'"), ("fractune.ReplicaPool", "")


def script(tmp_path: Path, changes: str, quota_file: str = "", loading: tuple[str, str] = _MODEL) -> str:
    measured = {name: {name: secs} for name, secs in _TIMES.items()}
    _, bundle = compile_small(tmp_path, measured=measured, choosing=measured, timed=_TIMES)
    load, options = loading
    return _SERVE.format(load=load, options=options, bundle=str(bundle), quota_file=quota_file, changes=changes)


def check(results: Any, threads: list[int]) -> None:
    found, answers, wrong = results
    assert [each[1:] for each in found] == [[f"cpu:{each}", each] for each in threads]
    assert max(secs for secs, *_ in found) < _WITHIN_S
    assert wrong == []
    assert answers > 10


def test_a_limit_that_changes_under_load_is_followed_within_a_second(tmp_path: Path) -> None:
    changes = "followed(limit, 200000, 2), followed(limit, 50000, 1), followed(limit, 150000, 2)"
    with capped_cgroup(cores=0.5) as cgroup:
        before, *results = json.loads(cgroup.run(script(tmp_path, changes, str(cgroup.quota_file))))
    assert before == "cpu:1"
    check(results, threads=[2, 1, 2])


@pytest.mark.long
def test_replicas_follow_a_limit_within_a_second(tmp_path: Path) -> None:
    changes = "followed(limit, 200000, 2), followed(limit, 50000, 1), followed(limit, 150000, 2)"
    with capped_cgroup(cores=0.5) as cgroup:
        serve = script(tmp_path, changes, str(cgroup.quota_file), _POOL)
        _, found, answers, wrong = json.loads(cgroup.run(serve))
    assert [number for *_, number in found] == [2, 1, 2]
    assert {variant for _, variant, _ in found} == {"cpu:1"}
    assert max(secs for secs, *_ in found) < _WITHIN_S
    assert (wrong, answers > 10) == ([], True)


@pytest.mark.long
def test_an_affinity_that_changes_under_load_is_followed_within_a_second(tmp_path: Path) -> None:
    serve = script(tmp_path, "followed(pin, 1, 1), followed(pin, 2, 2), followed(pin, 1, 1)")
    done = subprocess.run([sys.executable, "-c", serve], capture_output=True, text=True, check=True, timeout=60)
    before, *results = json.loads(done.stdout)
    assert before == "cpu:2"
    check(results, threads=[1, 2, 1])
