"""Where the threads of a model may be, as the kernel tells: apart from each other, on CPUs of the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.paths import REPOSITORY
from tests.unit.conftest import Small

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
    """The JSON that a fresh interpreter prints; it must end well and say nothing else."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", BEGIN + script, *args]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(ended.stdout)


FULL_AND_ONE = """
cpus = tuple(sorted(os.sched_getaffinity(0)))
found = []
for threads in (len(cpus), 1):
    fractune_runtime.cpu.share_here = lambda: ShareHere(threads, cpus, "made up")
    found.append(pool(lambda: fractune.load(sys.argv[1])))
print(json.dumps(found))
"""


@pytest.mark.parametrize(("threads", "bind"), [("", ""), ("1", "0"), ("7", "1"), ("7", ""), ("", "0")])
def test_the_pool_has_a_thread_on_each_core_of_the_share_whatever_the_environment_says(
    small: Small, monkeypatch: pytest.MonkeyPatch, threads: str, bind: str
) -> None:
    for name, value in (("TVM_NUM_THREADS", threads), ("TVM_BIND_THREADS", bind)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    full, one = run_script(FULL_AND_ONE, str(small.bundle))
    assert full == [[[cpu] for cpu in CPUS], []], "a CPU for each; no thread of others is moved"
    assert one == [[], []], "one thread is the caller's, and is not moved"


WITHIN = """
os.sched_setaffinity(0, json.loads(sys.argv[2]))
print(json.dumps([pool(lambda: fractune.load(sys.argv[1], share=share)) for share in (None, "cpu:1")]))
"""


def test_no_thread_leaves_the_cpus_that_the_process_was_given(small: Small) -> None:
    for given in ([CPUS[0]], [CPUS[-1]]):
        assert run_script(WITHIN, str(small.bundle), json.dumps(given)) == [[[], []]] * 2


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
reader, writer = os.pipe()
if os.fork() == 0:
    os.sched_setaffinity(0, json.loads(sys.argv[2]))
    os.write(writer, json.dumps(pool(lambda: model)).encode())
    os._exit(0)
os.wait()
print(os.read(reader, 1 << 16).decode())
"""


@needs_two
def test_a_fork_that_was_given_fewer_cpus_keeps_to_them(small: Small) -> None:
    assert run_script(FORKED, str(small.bundle), json.dumps(CPUS[1:2])) == [[CPUS[1:2]], []]
    assert run_script(FORKED, str(small.bundle), json.dumps(CPUS)) == [[[cpu] for cpu in CPUS], []]
