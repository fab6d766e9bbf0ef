"""The one-machine stack: it ends with its command, however that ends, and survives the death of its parts."""

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.processes.cli_process import (
    Started,
    await_event,
    command_of,
    descendants,
    error_line,
    events,
    parent_of,
    run_fractune,
    start_fractune,
    stopped_at_end,
    users_of,
    write_model,
)
from tests.support.processes.redis_process import wait_until

TRIALS = 20


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def start_tuning(state: Path, *more: str) -> Started:
    """A job that goes on for longer than any test."""
    model = write_model(state.parent / "m.onnx")
    where = ("--state", str(state), "--out-dir", str(state.parent), "--json")
    return start_fractune("tune", str(model), "--shares", "cpu:1", "--trials", "5000", *where, *more)


def find(process: Started, *words: str) -> int:
    """The one part of the stack whose command holds all the words."""
    # Not what a part is forking, which has its command for a moment.
    parts = [pid for pid in descendants(process.pid) if parent_of(pid) == process.pid]
    (pid,) = [pid for pid in parts if all(word in command_of(pid) for word in words)]
    return pid


@pytest.mark.long
def test_a_state_folder_in_use_is_told_and_kill_minus_nine_of_its_user_leaves_no_process(state: Path) -> None:
    tuning = start_tuning(state)
    with stopped_at_end(tuning):
        await_event(tuning, event="progress", state="tuning")
        # Another job would end with the stack of the first one. A question is answered by it.
        more = ("--shares", "cpu:1", "--state", str(state), "--out-dir", str(state.parent))
        ended = run_fractune("tune", str(state.parent / "m.onnx"), *more)
        assert ended.returncode == 7
        assert f"another fractune stack (pid {tuning.pid}) uses {state}" in error_line(ended)
        assert len(events(run_fractune("jobs", "--state", str(state), "--json"))) == 1

        started = descendants(tuning.pid)
        assert len(started) >= 8  # redis, server, four workers or more, and the children of those that have had work
        assert set(redis_of(tuning)) <= set(started)
        tuning.kill()
        tuning.wait()
        wait_until(lambda: not any(parent_of(pid) for pid in started), 30)
        assert users_of(state) == []
        # Who only asks leaves open jobs open: `fractune up` would go on with this one.
        (job,) = events(run_fractune("jobs", "--state", str(state), "--json"))
        assert job["state"] == "tuning"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_a_stopped_command_cancels_its_job_and_ends_everything(state: Path, number: signal.Signals, code: int) -> None:
    tuning = start_tuning(state)
    with stopped_at_end(tuning):
        await_event(tuning, event="job", state="ingesting")
        started = descendants(tuning.pid)
        tuning.send_signal(number)
        _, said = tuning.communicate(timeout=90)
    assert tuning.returncode == code
    assert re.fullmatch(r"fractune: stopped; jobs/\w+ is cancelled; the log is kept in .*/state\n", said)
    wait_until(lambda: not any(parent_of(pid) for pid in started))  # a killed worker's child ends after it
    assert users_of(state) == []
    (job,) = events(run_fractune("jobs", "--state", str(state), "--json"))
    assert job["state"] == "cancelled"


def redis_of(process: Started) -> list[int]:
    """The Redis of a command; none while it is being started again."""
    commands = {pid: command_of(pid) for pid in descendants(process.pid)}
    return [pid for pid, command in commands.items() if "redis.sock" in command and "fractune.cli" not in command]


@pytest.mark.long
def test_redis_killed_in_mid_job_is_started_again_and_the_budget_is_spent_once(state: Path) -> None:
    model = write_model(state.parent / "m.onnx")
    where = ("--state", str(state), "--out-dir", str(state.parent), "--json", "--only", "conv2d", "--compete", "none")
    tuning = start_fractune("tune", str(model), "--shares", "cpu:1", "--trials", str(TRIALS), *where)
    killed: set[int] = set()
    with stopped_at_end(tuning):
        for _ in range(3):
            await_event(tuning, event="progress", state="tuning")
            wait_until(lambda: set(redis_of(tuning)) - killed)
            (pid,) = redis_of(tuning)
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        result = await_event(tuning, event="result")
        tuning.communicate(timeout=90)
    assert len(killed) == 3
    assert tuning.returncode == 0
    assert result["trials"] == {"cpu:1": TRIALS}
    trials = events(run_fractune("log", "show", "--kind", "trial", "--state", str(state), "--limit", "999", "--json"))
    assert len(trials) == len({record["candidate_id"] for record in trials}) == TRIALS


@pytest.mark.long
def test_redis_that_does_not_stay_up_is_told_and_the_next_run_goes_on(state: Path) -> None:
    tuning = start_tuning(state)
    with stopped_at_end(tuning):
        done = 0
        while not done:
            done = await_event(tuning, event="progress", state="tuning")["candidates_done"]
        started = descendants(tuning.pid)
        while tuning.poll() is None:
            for pid in redis_of(tuning):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        _, said = tuning.communicate(timeout=90)
    assert tuning.returncode == 5
    assert said.startswith("fractune: Redis does not stay up: ")
    assert "given up after 5 restarts in a minute" in said
    assert "run the same command again" in said
    assert said.count("\n") == 1
    wait_until(lambda: not any(parent_of(pid) for pid in started))  # a killed worker's child ends after it
    kept = events(run_fractune("log", "show", "--state", str(state), "--limit", "9999", "--json"))
    assert len({record["candidate_id"] for record in kept}) >= done
    again = start_tuning(state)
    with stopped_at_end(again):
        operators = 0
        while not operators:
            operators = await_event(again, event="operator")["trials"]


@pytest.mark.long
def test_parts_killed_in_mid_job_are_started_again_and_no_record_is_lost_or_doubled(state: Path) -> None:
    model = write_model(state.parent / "m.onnx")
    where = ("--state", str(state), "--out-dir", str(state.parent), "--json", "--only", "conv2d", "--compete", "none")
    tuning = start_fractune("tune", str(model), "--shares", "cpu:1", "--trials", str(TRIALS), *where)
    parts = [("worker", "measure-cpu-1"), ("worker", "build-0"), ("worker", "--role tune"), ("cli server",)]
    with stopped_at_end(tuning):
        for part in parts:
            await_event(tuning, event="progress", state="tuning")
            os.kill(find(tuning, "fractune.cli", *part), signal.SIGKILL)
        result = await_event(tuning, event="result")
        tuning.communicate(timeout=90)
    assert tuning.returncode == 0
    assert result["trials"] == {"cpu:1": TRIALS}
    trials = events(run_fractune("log", "show", "--kind", "trial", "--state", str(state), "--limit", "999", "--json"))
    assert len(trials) == len({record["candidate_id"] for record in trials}) == TRIALS
