"""Jobs of a real server with a simulated fleet: handed in and left, found again, and who stops them."""

import contextlib
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import fractune
from fractune.local.state import open_state
from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.cli_process import await_event, error_line, events, run_fractune, start_fractune
from tests.support.processes.fleet_simulated import SimulatedFleet
from tests.support.processes.server_process import Client, ServerProcess, model_bytes, simulated_stack
from tests.support.processes.terminal import CTRL_C, ENTER, Terminal, at_terminal

_DIES_WITH_THE_LOCK = """
import os, signal, sys
from pathlib import Path
from fractune.local.state import open_state
with open_state(Path(sys.argv[1])) as folder:
    folder.publish_address("127.0.0.1:1", for_others=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass(frozen=True)
class Place:
    fleet: SimulatedFleet
    server: ServerProcess
    client: Client
    folder: Path

    @property
    def at(self) -> tuple[str, str]:
        return ("--server", self.server.address)

    def model(self) -> Path:
        """A model that no other test has."""
        mark = uuid.uuid4().hex[:6]
        path = self.folder / f"{mark}.onnx"
        path.write_bytes(model_bytes((f"op_{mark}", 1)))
        return path

    def job(self) -> tuple[str, ...]:
        """A command that asks for a job on a model of its own."""
        return ("tune", str(self.model()), "--shares", "cpu:1", "--trials", "6")

    def newest(self) -> pb.Job:
        return self.client.jobs.ListJobs(pb.ListJobsRequest(page_size=1)).jobs[0]

    def finish(self, job: str) -> pb.Job:
        """Let the builder build, and follow the job to its end."""
        self.fleet.workers["build-1"].hold.clear()
        return self.client.finish(job)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("left")
    with simulated_stack(folder / "state") as (_, fleet, server, client):
        yield Place(fleet, server, client, folder)


@pytest.fixture
def place(shared: Place) -> Iterator[Place]:
    """Jobs that go on until the builder is let go."""
    shared.fleet.workers["build-1"].hold.set()
    yield shared
    shared.fleet.workers["build-1"].hold.clear()


@pytest.fixture
def found(place: Place, tmp_path: Path) -> Iterator[Path]:
    """The state folder of a stack whose server is the place's, as `fractune up` publishes it."""
    with open_state(tmp_path / "up") as folder:
        folder.publish_address(place.server.address, for_others=True)
        yield folder.path


@contextlib.contextmanager
def tuning_at_terminal(place: Place) -> Iterator[Terminal]:
    with at_terminal(*place.job(), *place.at) as terminal:
        terminal.wait_for("tuning")
        yield terminal


def test_a_job_is_left_found_again_followed_and_fetched(place: Place, found: Path, tmp_path: Path) -> None:
    ended = run_fractune(*place.job(), "--detach", env={"FRACTUNE_STATE": str(found)})
    assert (ended.returncode, ended.stderr) == (0, "")
    job = ended.stdout.strip()
    assert job == place.newest().name
    (listed, *_) = events(run_fractune("jobs", "--json", "--state", str(found)))
    assert listed["job"] == job

    out, told = tmp_path / "fetched.fractune", tmp_path / "told"
    command = f'echo to the hook; echo "$FRACTUNE_JOB $FRACTUNE_JOB_STATE $FRACTUNE_JOB_BUNDLE" > {told}; exit 3'
    args = ("watch", job, "--json", "--out", str(out), "--on-done", command)
    watching = start_fractune(*args, env={"FRACTUNE_SERVER": place.server.address})
    await_event(watching, event="progress", state="tuning")
    done = place.finish(job)
    said, errors = watching.communicate(timeout=60)
    assert watching.returncode == 0, errors
    result = json.loads(said.splitlines()[-1])
    assert (result["event"], result["job"], result["bundle"]) == ("result", job, str(out))
    assert out.read_bytes()
    assert told.read_text() == f"{done.name} done {out}\n"
    assert errors.splitlines() == ["to the hook", "note: the command of --on-done ended with code 3"]


def test_watching_ends_with_the_code_of_the_jobs_end(place: Place, tmp_path: Path) -> None:
    (detached,) = events(run_fractune(*place.job(), *place.at, "--detach", "--json"))
    assert (detached["event"], detached["server"]) == ("detached", place.server.address)
    told = tmp_path / "told"
    command = f'echo "$FRACTUNE_JOB_STATE $FRACTUNE_JOB_CODE" > {told}'
    watching = start_fractune("watch", detached["job"], "--json", "--on-done", command, *place.at)
    await_event(watching, event="job", job=detached["job"])
    assert run_fractune("cancel", detached["job"], *place.at).returncode == 0
    _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 6
    assert f"{detached['job']} was cancelled" in errors
    assert told.read_text() == "cancelled 6\n"


def test_ctrl_c_at_a_terminal_asks_and_enter_leaves_the_job(place: Place) -> None:
    with tuning_at_terminal(place) as terminal:
        terminal.type(ENTER)  # typed before the question: no answer to it
        terminal.type(CTRL_C)
        terminal.wait_for("Enter leaves it there, Ctrl-C again cancels it")
        job = place.newest()
        assert job.state == pb.JOB_STATE_TUNING
        terminal.type(ENTER)
        terminal.wait_for(f"fractune watch {job.name}")
        assert terminal.ended() == 130
    with at_terminal("watch", job.name, *place.at) as watching:  # which never cancels, and so need not ask
        watching.wait_for("tuning")
        watching.type(CTRL_C)
        assert watching.ended() == 130
    assert place.finish(job.name).state == pb.JOB_STATE_DONE


def test_ctrl_c_again_cancels_it(place: Place) -> None:
    with tuning_at_terminal(place) as terminal:
        terminal.type(CTRL_C)
        terminal.wait_for("Ctrl-C again cancels it")
        terminal.type(CTRL_C)
        terminal.wait_for("cancelling jobs/")
        assert terminal.ended() == 130
    assert place.newest().state == pb.JOB_STATE_CANCELLED


@pytest.mark.parametrize("asked", [False, True])
def test_a_closed_terminal_leaves_the_job(place: Place, *, asked: bool) -> None:
    with tuning_at_terminal(place) as terminal:
        if asked:
            terminal.type(CTRL_C)
            terminal.wait_for("Ctrl-C again cancels it")
        terminal.close()
        assert terminal.ended() == (130 if asked else 129)
    job = place.newest()
    assert job.state == pb.JOB_STATE_TUNING
    assert place.finish(job.name).state == pb.JOB_STATE_DONE


@pytest.mark.parametrize(
    ("number", "code", "state"),
    [
        (signal.SIGINT, 130, pb.JOB_STATE_CANCELLED),
        (signal.SIGTERM, 143, pb.JOB_STATE_CANCELLED),
        (signal.SIGHUP, 129, pb.JOB_STATE_TUNING),
    ],
)
def test_without_a_terminal_ctrl_c_and_sigterm_cancel_and_sighup_leaves(
    place: Place, number: signal.Signals, code: int, state: pb.JobState
) -> None:
    tuning = start_fractune(*place.job(), "--json", *place.at)
    await_event(tuning, event="progress", state="tuning")
    tuning.send_signal(number)
    _, said = tuning.communicate(timeout=60)
    job = place.newest()
    line = "" if job.state == pb.JOB_STATE_TUNING else f"fractune: stopped; {job.name} is cancelled\n"
    assert (tuning.returncode, said, job.state) == (code, line, state)


def test_a_stack_is_found_by_commands_and_by_connect_and_told_when_it_has_died(
    place: Place, found: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRACTUNE_STATE", str(found))
    with fractune.connect() as client:
        assert client.address == place.server.address
        assert [worker.role for worker in client.workers()] == ["build", "compile", "measure", "measure", "tune"]
    dead = tmp_path / "dead"
    killed = subprocess.run([sys.executable, "-c", _DIES_WITH_THE_LOCK, str(dead)], check=False)
    assert killed.returncode == -signal.SIGKILL
    for command in (("watch", "j1"), (*place.job(), "--detach")):
        ended = run_fractune(*command, "--state", str(dead))
        assert ended.returncode == 5, ended.stderr
        assert f"the stack that ran in {dead} has died" in error_line(ended)
