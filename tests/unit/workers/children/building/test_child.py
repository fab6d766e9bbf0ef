"""Builds in forks of a warm process: what happens to one happens to no other."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fractune_core.host.machine import model_memory_bytes
from fractune_workers import builder_process
from fractune_workers.builder_process import BuilderProcess
from fractune_workers.child import Child
from fractune_workers.child.errors import TRIES, CallFailed, ChildDied
from tests.support.paths import REPOSITORY
from tests.support.processes.redis_process import wait_until
from tests.support.processes.worker_processes import alive
from tests.support.samples import WORKLOAD


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child("tests.support.children.building_module")
    yield child
    child.stop()


def build(child: Child, trace: str, **limit: int) -> dict[str, Any]:
    target = '{"kind": "llvm"}'
    answer: dict[str, Any] = child.call("build", 60, workload_hash=WORKLOAD, target=target, trace=trace, **limit)
    return answer


def test_every_build_has_a_process_of_its_own_that_ends_with_it(child: Child) -> None:
    said = [build(child, "good")["object"].decode() for _ in range(2)]
    pids = [int(text.removeprefix("good by ")) for text in said]
    assert len({*pids, child.call("pid", 20)}) == 3
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_a_failure_is_the_candidates_and_has_one_line(child: Child) -> None:
    answer = build(child, "fail")
    assert (answer["status"], answer["cause"]) == ("build_failed", "ValueError: no such loop")
    assert answer["object"] == b""
    assert answer["versions"] == {}


def test_a_build_beyond_its_memory_says_so() -> None:
    child = Child("tests.support.children.building_module", memory_bytes=1 << 30)
    answers = [build(child, trace) for trace in ("all memory", "much memory")]
    child.stop()
    cause = "it takes more than 1 GiB of memory; make it smaller, or start workers with a larger --max-model-memory"
    assert [(answer["status"], answer["cause"]) for answer in answers] == [
        ("build_failed", cause),
        ("crashed", f"while it was built: {cause}"),
    ]


def test_a_builders_child_has_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int | None] = []
    monkeypatch.setattr(builder_process, "Child", lambda *_, sandbox, **__: made.append(sandbox.memory_bytes))
    BuilderProcess()
    BuilderProcess(7 << 30)
    assert made == [model_memory_bytes(), 7 << 30]


def test_a_builders_child_reaches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but its folder: what the compiler of a hostile operator could be made to do."""
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("SOME_TOKEN", "a secret")
    monkeypatch.setattr(builder_process, "_CHILD", "tests.support.children.hostile_module")
    process = BuilderProcess(1 << 30, [secret])
    child = process.child
    try:
        environment = child.call("environment", 20)
        assert "a secret" not in environment.values()
        child.call("write", 20, path=f"{environment['TMPDIR']}/own", count=1)
        assert not [each for each in child.lacking if "it can" in each]
        refused: dict[str, dict[str, Any]] = {
            "read": {"path": str(secret)},
            "parents_environment": {},
            "write": {"path": str(tmp_path / "other"), "count": 1},
            "connect": {"port": 1},
            "leave_group": {},
        }
        for method, payload in refused.items():
            with pytest.raises(CallFailed, match="PermissionError"):
                child.call(method, 20, **payload)
        for what in ("program", "signal", "link", "owner", "log"):
            with pytest.raises(CallFailed, match="PermissionError"):
                child.call("attempt", 20, what=what, path=str(secret), pid=os.getpid())
    finally:
        process.stop()
    assert not Path(environment["TMPDIR"]).exists()


def test_a_build_beyond_its_cpu_time_is_ended(child: Child) -> None:
    answer = build(child, "spin", limit_cpu_s=1)
    assert (answer["status"], answer["cause"]) == ("build_timeout", "not built within 1 s of CPU time")
    assert 0.5 < answer["build_secs"] < 2.5  # the kernel holds the limit by its ticks, which count more or less


@pytest.mark.parametrize("trace", ["program", "program ended early"])
def test_what_a_program_of_the_compiler_takes_counts_too(child: Child, trace: str) -> None:
    answer = build(child, trace, limit_cpu_s=1)
    assert (answer["status"], answer["cause"]) == ("build_timeout", "not built within 1 s of CPU time")
    assert 0.5 < answer["build_secs"] < 2.5  # the kernel holds the limit by its ticks, which count more or less


@pytest.mark.parametrize(("trace", "how"), [("crash", "SIGSEGV"), ("leave", "an early end")])
def test_a_compiler_that_ends_takes_nothing_along(child: Child, trace: str, how: str) -> None:
    pid = child.call("pid", 20)
    answer = build(child, trace)
    assert answer["status"] == "crashed"
    assert how in answer["cause"]
    assert child.call("pid", 20) == pid
    assert build(child, "good")["status"] == "ok"


def test_a_compiler_that_is_killed_once_or_twice_builds_all_the_same(child: Child, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(build, child, f"wait for {go_on}")
        _kill_the_next(tmp_path, signal.SIGKILL)
        _kill_the_next(tmp_path, signal.SIGTERM, and_then=go_on)
        answer = call.result(20)
    assert (answer["status"], answer["cause"]) == ("ok", "")


def test_a_compiler_that_is_killed_leaves_no_file(tmp_path: Path) -> None:
    files, go_on = tmp_path / "files", tmp_path / "go-on"
    files.mkdir()
    child = Child("tests.support.children.building_module", env={"TMPDIR": str(files)})
    try:
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(build, child, f"write and wait for {go_on}")
            wait_until(lambda: list(tmp_path.glob("go-on.*")))
            assert list(files.rglob("candidate.o"))
            _kill_the_next(tmp_path, signal.SIGKILL, and_then=go_on)
            assert call.result(20)["status"] == "ok"
        assert list(files.iterdir()) == []
    finally:
        child.stop()


def test_a_compiler_that_is_always_killed_is_the_candidates(child: Child, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(build, child, f"wait for {tmp_path / 'never'}")
        for _ in range(TRIES):
            _kill_the_next(tmp_path, signal.SIGKILL)
        answer = call.result(20)
    assert (answer["status"], answer["cause"]) == ("crashed", "while it was built: the compiler was ended by SIGKILL")


def _kill_the_next(folder: Path, number: signal.Signals, and_then: Path | None = None) -> None:
    """Kill the fork that waits next; `and_then` is what the one after it waits for."""
    wait_until(lambda: list(folder.glob("*.*")))
    (waiting,) = folder.glob("*.*")
    waiting.unlink()
    if and_then is not None:
        and_then.touch()
    os.kill(int(waiting.suffix[1:]), number)


def test_no_build_outlives_its_parent(child: Child) -> None:
    parent = child.call("pid", 20)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(build, child, "spin", limit_cpu_s=30)
        wait_until(lambda: bool(_forks(parent)))
        (fork,) = _forks(parent)
        os.kill(parent, signal.SIGKILL)
        with pytest.raises(ChildDied):
            call.result(20)
    wait_until(lambda: not alive(fork))


def _forks(pid: int) -> list[int]:
    return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
