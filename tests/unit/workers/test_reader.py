"""A child that reads models, and what it cannot do: real processes that try."""

import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import BadModel, FractuneError
from fractune_core.host import machine
from fractune_core.host.limits import own_peak_bytes
from fractune_workers import child as child_module
from fractune_workers.child import Child
from fractune_workers.child.errors import CallFailed, ChildDied, ChildKilled, ChildTimeout, LimitMet, retry_if_killed
from fractune_workers.reader import reader_child
from tests.support.paths import REPOSITORY

MODULE = "tests.support.children.hostile_module"
MEMORY_BYTES = 512 << 20
Start = Callable[..., Child]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts children, which end with the test."""
    started: list[Child] = []

    def start(**options: Any) -> Child:
        given: dict[str, Any] = {"env": {"PYTHONPATH": str(REPOSITORY)}, "memory_bytes": MEMORY_BYTES, **options}
        started.append(reader_child(MODULE, **given))
        return started[-1]

    yield start
    for child in started:
        child.stop()


def test_it_reads_its_model_and_neither_the_secret_nor_its_supervisor(start: Start, tmp_path: Path) -> None:
    model, secret = tmp_path / "model.onnx", tmp_path / "secret"
    model.write_text("a model")
    secret.write_text("a secret")
    child = start(model=model, hidden=[secret])
    assert child.call("read", 20, path=str(model)) == "a model"
    for method, path in (("read", {"path": str(secret)}), ("parents_environment", {})):
        with pytest.raises(CallFailed, match="PermissionError"):
            child.call(method, 20, **path)
    assert not [each for each in child.lacking if "it can" in each]


def test_it_reads_the_packages_that_compute(tmp_path: Path) -> None:
    """Also where they do not lie beside Python, as in an editable installation. The path of other tests hides that."""
    (tmp_path / "importing_module.py").write_text(
        "import importlib\ndef open_child(args):\n"
        "    return {'path_of': lambda name: importlib.import_module(name).__file__}\n"
    )
    child = reader_child("importing_module", env={"PYTHONPATH": str(tmp_path)})
    try:
        for name in ("fractune_core.jobs", "fractune_runtime.choosing", "fractune_workers.child"):
            assert str(child.call("path_of", 20, name=name)).endswith(".py")
    finally:
        child.stop()


def test_what_is_not_hidden_is_named(start: Start) -> None:
    """Here because the secret lies where Python looks for modules."""
    child = start(hidden=[Path(__file__)])
    child.ensure()
    assert f"it can read {__file__} (it lies in {REPOSITORY}, which it must read; move it)" in child.lacking


def test_a_secret_in_a_folder_of_models_is_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret")
    child = start(model=tmp_path, hidden=[tmp_path / "secret"])
    child.ensure()
    assert f"it can read {tmp_path / 'secret'} (it lies in {tmp_path}, which it must read; move it)" in child.lacking


def test_its_environment_has_no_secrets(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FRACTUNE_SECRET", "FRACTUNE_REDIS", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "SOME_TOKEN"):
        monkeypatch.setenv(name, "a secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    found = start().call("environment", 20)
    assert "a secret" not in found.values()
    assert found["LC_ALL"] == "C.UTF-8"
    assert found["PATH"] == os.environ["PATH"]


def test_it_writes_in_its_scratch_folder_and_nowhere_else(start: Start, tmp_path: Path) -> None:
    scratch, other = tmp_path / "scratch", tmp_path / "other"
    scratch.mkdir()
    child = start(own_dir=scratch)
    child.call("write", 20, path=str(scratch / "new"), count=10)
    assert child.call("environment", 20)["TMPDIR"] == str(scratch)
    with pytest.raises(CallFailed, match="PermissionError"):
        child.call("write", 20, path=str(other), count=10)
    with pytest.raises(CallFailed, match="File too large"):
        child.call("write", 20, path=str(scratch / "huge"), count=MEMORY_BYTES + 1)


def test_it_writes_no_model(start: Start, tmp_path: Path) -> None:
    models, own = tmp_path / "models", tmp_path / "own"
    models.mkdir()
    own.mkdir()
    (models / "model.onnx").write_text("a model")
    child = start(model=models, own_dir=own)
    assert child.call("read", 20, path=str(models / "model.onnx")) == "a model"
    for name in ("model.onnx", "other.onnx"):
        with pytest.raises(CallFailed, match="PermissionError"):
            child.call("write", 20, path=str(models / name), count=10)


_ON_ITS_FOLDER = ("link", "hard link", "pipe", "move", "own folder away")
_ON_OTHERS_FILES = ("mode", "owner", "times", "attribute", "log")
_ON_OTHERS = ("limit", "cores", "scheduler", "priority", "all priorities", "signal")
_ON_THE_SYSTEM = ("own limit", "unshare", "clone", "shared memory", "queue", "key")


@pytest.mark.parametrize("attempts", [_ON_ITS_FOLDER, _ON_OTHERS_FILES, _ON_OTHERS, _ON_THE_SYSTEM])
def test_it_is_refused(start: Start, tmp_path: Path, attempts: tuple[str, ...]) -> None:
    """The other process is one of the same user."""
    own, file = tmp_path / "own", tmp_path / "file"
    own.mkdir()
    file.write_text("another's")
    child = start(own_dir=own)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as other:
        for what in attempts:
            with pytest.raises(CallFailed, match=r"PermissionError|Invalid cross-device link|not allowed"):
                child.call("attempt", 20, what=what, path=str(file), pid=other.pid)
        assert other.poll() is None
    assert other.returncode == 0


def test_what_it_has_left_is_gone_when_it_starts_again(start: Start, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    child = start(own_dir=own)
    child.call("write", 20, path=str(own / "left"), count=10)
    child.kill()
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    (own / "link").symlink_to(other)  # as on a kernel without Landlock
    child.ensure()
    assert not {"left", "link"} & {each.name for each in own.iterdir()}
    assert (other / "file").exists()


def test_it_reaches_nobody(start: Start, tmp_path: Path) -> None:
    child = start(model=tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as at_path:
        at_path.bind(str(tmp_path / "socket"))
        at_path.listen()
        with pytest.raises(CallFailed, match="PermissionError"):
            child.call("connect", 20, port=server.getsockname()[1])
        with pytest.raises(CallFailed, match="PermissionError"):
            child.call("connect_to_path", 20, path=str(tmp_path / "socket"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mailbox:
        mailbox.bind(str(tmp_path / "mailbox"))
        with pytest.raises(CallFailed, match="PermissionError"):
            child.call("send_to_path", 20, path=str(tmp_path / "mailbox"))
    with pytest.raises(CallFailed, match="PermissionError"):
        child.call("leave_group", 20)


def test_memory_that_it_is_refused_is_its_limit(start: Start) -> None:
    child = start()
    with pytest.raises(LimitMet, match=r"^it takes more than 0\.5 GiB of memory; make it smaller, or"):
        child.call("allocate", 20, count=MEMORY_BYTES)
    assert child.pid is None
    assert child.call("allocate", 20, count=1) == 1


def test_a_death_with_much_memory_is_its_limit_and_another_is_not(start: Start) -> None:
    limit_bytes = MEMORY_BYTES // 2 + 2 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    child, much = start(memory_bytes=limit_bytes), limit_bytes * 6 // 10
    with pytest.raises(LimitMet, match=r"^it takes more than .* GiB of memory; make it smaller, or"):
        child.call("fill_and_end", 20, count=much, number=signal.SIGABRT)
    with pytest.raises(ChildDied, match="SIGABRT") as died:
        child.call("fill_and_end", 20, count=1, number=signal.SIGABRT)
    assert not isinstance(died.value, LimitMet)
    with pytest.raises(ChildKilled):  # somebody's, or that of a host without memory: nobody's fault
        child.call("fill_and_end", 20, count=much, number=signal.SIGKILL)


def test_a_death_is_not_blamed_for_the_memory_of_who_started_the_process(start: Start) -> None:
    """Linux lets a process begin with the largest memory that its parent has had."""
    held = bytearray(os.urandom(1) * (MEMORY_BYTES * 6 // 10))
    child = start()
    with pytest.raises(ChildDied, match="SIGABRT"):
        child.call("fill_and_end", 20, count=len(held[:1]), number=signal.SIGABRT)


def test_the_kernels_two_readings_of_a_peak_may_differ_a_little(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    held = bytearray(os.urandom(1) * (MEMORY_BYTES * 6 // 10))
    monkeypatch.setattr("fractune_core.host.limits.own_peak_bytes", lambda: own_peak_bytes() - (1 << 20))
    with pytest.raises(ChildDied, match="SIGABRT"):
        start().call("fill_and_end", 20, count=len(held[:1]), number=signal.SIGABRT)


def test_a_limit_that_is_met_is_not_met_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU time, which counts from each call on."""
    monkeypatch.setattr(child_module, "_CPU_PART", 1 / 60)
    child, calls = start(), 0

    def burn() -> None:
        nonlocal calls
        calls += 1
        child.call("burn", 60)

    with pytest.raises(LimitMet, match=r"^it takes more than 1 s of CPU time; make it smaller$"):
        retry_if_killed(burn)
    assert calls == 1


def test_a_limit_whose_signal_is_ignored_is_met(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "_CPU_PART", 1 / 60)
    child = start()
    with pytest.raises(LimitMet, match=r"^it takes more than 1 s of CPU time; make it smaller$"):
        child.call("burn", 60, deaf=True)
    assert child.pid is None


def test_an_answer_that_does_not_come_whole_is_not_waited_for(start: Start) -> None:
    child = start()
    child.ensure()
    with pytest.raises(ChildTimeout):
        child.call("stall", 1, said=10)
    assert child.pid is None


@pytest.mark.parametrize(
    ("said", "sent"), [((1 << 28) + 1, ""), (-1 & 0xFFFFFFFF, ""), (2, "{}"), (20_000, "[" * 20_000)]
)
def test_an_answer_that_is_none_ends_it(start: Start, said: int, sent: str) -> None:
    child = start()
    with pytest.raises(ChildDied):
        child.call("stall", 20, said=said, sent=sent)
    assert child.pid is None


def test_an_error_that_no_reader_raises_does_not_act_on_its_worker(start: Start) -> None:
    """A worker ends after ShareUnavailable, and its work is done again. An error of the model keeps its class."""
    child = start()
    others = "ShareUnavailable ShareNotReady RedisGone StateUnusable ChildKilled ChildTimeout Other"
    for name in (*others.split(), "BadModel"):
        with pytest.raises(FractuneError, match="not me") as caught:
            child.call("answer_with", 20, name=name)
        assert type(caught.value) is (BadModel if name == "BadModel" else FractuneError), name


@pytest.mark.parametrize(("usable_gib", "gib"), [(1, 1), (8, 4), (100, 40)])
def test_a_share_of_the_hosts_memory(usable_gib: int, gib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_memory_bytes", lambda: usable_gib << 30)
    assert machine.model_memory_bytes() == gib << 30
