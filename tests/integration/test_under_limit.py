"""Models in a real cgroup with a quota: the threads that they take and their CPUs, also when the limit or the affinity
changes under load, and the counter of docs/cpu-limits.md.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fractune_core.files.bundles import Bundle
from tests.support.hardware.real_cgroup import capped_cgroup
from tests.support.paths import REPOSITORY
from tests.support.real_bundle import Small

_TWO_CPUS = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")


@pytest.fixture(scope="module")
def bundle(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With times of the whole model."""
    made, times = tmp_path_factory.mktemp("bundle") / "small.fractune", {"cpu:1": 0.0184, "cpu:2": 0.0096}
    measured = {name: {name: secs} for name, secs in times.items()}
    with made.open("wb") as file:
        Bundle(small.bundle).copy_to(file, measured=measured, choosing=measured, timed=times)
    return made


_PINNED = """
import json, os
import fractune, numpy
from fractune.cli.commands.models.run import _report
from fractune_runtime.tvm_runtime.runtime import load_runtime

def affinities():
    return {{int(thread): sorted(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}}

load_runtime()
before = affinities()
model = fractune.load({bundle!r})
model.run(model.random_inputs())
pool = sorted(cpus for thread, cpus in affinities().items() if thread not in before)
report = _report(model, model.choice, model.random_inputs(), None, 3, None)
print(json.dumps([report, pool, model.throttled]))
"""


@_TWO_CPUS
def test_two_pinned_threads_at_1500m(bundle: Path) -> None:
    with capped_cgroup(cores=1.5) as cgroup:
        report, pool, throttled = json.loads(cgroup.run(_PINNED.format(bundle=str(bundle))))
    assert (report["variant"], report["threads"], report["units"], report["quota_m"]) == ("cpu:2", 2, 2, 1500)
    assert report["reason"].startswith("under a limit of 1500m, predicted best with 2 threads: p50 9.65 ms")
    first, second = map(set, pool)
    assert not first & second, "each thread has CPUs of its own"
    assert throttled >= 0, "the kernel counts it here"


@_TWO_CPUS
def test_the_command_takes_a_goal(bundle: Path) -> None:
    commands = [["run", str(bundle), "--goal", goal, "--repeats", "3", "--json"] for goal in ("latency", "throughput")]
    with capped_cgroup(cores=1.0) as cgroup:
        said = cgroup.run(f"from fractune.cli import main\nfor each in {commands}:\n    main(each)")
    threads = [json.loads(line)["threads"] for line in said.splitlines()]
    assert threads == [2, 1]


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
_MODEL, _POOL = ("fractune.load", ", goal='throughput'"), ("fractune.ReplicaPool", "")


def script(bundle: Path, changes: str, quota_file: str = "", loading: tuple[str, str] = _MODEL) -> str:
    load, options = loading
    return _SERVE.format(load=load, options=options, bundle=str(bundle), quota_file=quota_file, changes=changes)


def check(results: Any, threads: list[int]) -> None:
    found, answers, wrong = results
    assert [each[1:] for each in found] == [[f"cpu:{each}", each] for each in threads]
    assert max(secs for secs, *_ in found) < _WITHIN_S
    assert wrong == []
    assert answers > 10


@_TWO_CPUS
def test_a_limit_that_changes_under_load_is_followed_within_a_second(bundle: Path) -> None:
    changes = "followed(limit, 200000, 2), followed(limit, 50000, 1), followed(limit, 150000, 2)"
    with capped_cgroup(cores=0.5) as cgroup:
        before, *results = json.loads(cgroup.run(script(bundle, changes, str(cgroup.quota_file))))
    assert before == "cpu:1"
    check(results, threads=[2, 1, 2])


@_TWO_CPUS
@pytest.mark.long
def test_replicas_follow_a_limit_within_a_second(bundle: Path) -> None:
    changes = "followed(limit, 200000, 2), followed(limit, 50000, 1), followed(limit, 150000, 2)"
    with capped_cgroup(cores=0.5) as cgroup:
        serve = script(bundle, changes, str(cgroup.quota_file), _POOL)
        _, found, answers, wrong = json.loads(cgroup.run(serve))
    assert [number for *_, number in found] == [2, 1, 2]
    assert {variant for _, variant, _ in found} == {"cpu:1"}
    assert max(secs for secs, *_ in found) < _WITHIN_S
    assert (wrong, answers > 10) == ([], True)


@_TWO_CPUS
@pytest.mark.long
def test_an_affinity_that_changes_under_load_is_followed_within_a_second(bundle: Path) -> None:
    serve = script(bundle, "followed(pin, 1, 1), followed(pin, 2, 2), followed(pin, 1, 1)")
    done = subprocess.run([sys.executable, "-c", serve], capture_output=True, text=True, check=True, timeout=60)
    before, *results = json.loads(done.stdout)
    assert before == "cpu:2"
    check(results, threads=[1, 2, 1])


_PAGE = (REPOSITORY / "docs" / "cpu-limits.md").read_text(encoding="utf-8")
_START = "start_http_server(9100)"
_SCRAPED = """
import urllib.request
import fractune

model = fractune.load({bundle!r})
inputs = model.random_inputs()
while not model.throttled:
    model.run(inputs)
{example}
with urllib.request.urlopen(f"http://127.0.0.1:{{server.server_port}}/metrics", timeout=10) as answer:
    print(answer.read().decode())
"""


def test_the_counter_of_the_page(small: Small) -> None:
    found = re.search(r"^    from prometheus_client import .*?(?=^\S)", _PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    example = textwrap.dedent(found.group())
    assert _START in example
    with capped_cgroup(cores=0.3) as cgroup:
        started = example.replace(_START, "server, _ = start_http_server(0, '127.0.0.1')")
        metrics = cgroup.run(_SCRAPED.format(bundle=str(small.bundle), example=started))
    assert "# TYPE model_throttled_seconds_total counter" in metrics
    (counted,) = re.findall(r"^model_throttled_seconds_total (\S+)$", metrics, re.MULTILINE)
    assert float(counted) > 0
