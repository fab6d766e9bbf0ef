"""A model in a real cgroup with a quota: the threads that it takes and their CPUs."""

import json
import os
from pathlib import Path

import pytest

from tests.support.hardware.real_cgroup import capped_cgroup
from tests.support.real_bundle import compile_small

_TIMES = {"cpu:1": 0.0184, "cpu:2": 0.0096}
_SERVE = """
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


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    measured = {name: {name: secs} for name, secs in _TIMES.items()}
    return compile_small(tmp_path_factory.mktemp("bundle"), measured=measured, choosing=measured, timed=_TIMES)[1]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_two_pinned_threads_at_1500m(bundle: Path) -> None:
    with capped_cgroup(cores=1.5) as cgroup:
        report, pool, throttled = json.loads(cgroup.run(_SERVE.format(bundle=str(bundle))))
    assert (report["variant"], report["threads"], report["units"], report["quota_m"]) == ("cpu:2", 2, 2, 1500)
    assert report["reason"].startswith("under a limit of 1500m, predicted best with 2 threads: p50 9.65 ms")
    first, second = map(set, pool)
    assert not first & second, "each thread has CPUs of its own"
    assert throttled >= 0, "the kernel counts it here"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_the_command_takes_a_goal(bundle: Path) -> None:
    with capped_cgroup(cores=1.0) as cgroup:
        threads = []
        for goal in ("latency", "throughput"):
            command = ["run", str(bundle), "--goal", goal, "--repeats", "3", "--json"]
            report = json.loads(cgroup.run(f"from fractune.cli import main; main({command})"))
            threads.append(report["threads"])
    assert threads == [2, 1]
