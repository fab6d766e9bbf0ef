"""`fractune jobs`, `watch`, `cancel`, `workers`, and `bundle` of a job, against a scripted server."""

import json
import signal
from contextlib import closing
from pathlib import Path

import pytest

from fractune.cli import main
from fractune.cli.commands import jobs
from fractune.cli.ending import LeavableView, Stopped
from fractune.features.client import Client
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import bundle_bytes
from tests.support.processes.cli_process import only_line
from tests.support.processes.scripted_server import ScriptedServer

HOSTILE = "[/b, 64] [batch, 64] \x1b]0;owned\x07"
SHOWN = "[/b, 64] [batch, 64] \\x1b]0;owned\\x07"


def test_names_and_messages_are_shown_as_they_are(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    """An error quotes a model's dimensions, which may look like markup of the library that draws tables."""
    server.script[-1].model_display_name = HOSTILE
    server.script[-1].message = HOSTILE
    server.workers = [pb.Worker(name="workers/w1", role="build", host=HOSTILE)]
    assert main(["jobs", "--server", server.address]) == 0
    assert "".join(capsys.readouterr().out.split()).count("".join(SHOWN.split())) == 2
    assert main(["workers", "--server", server.address]) == 0
    assert SHOWN in capsys.readouterr().out


def test_a_watch_that_is_stopped_says_that_the_job_goes_on(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LeavableView, "show", stop)
    assert main(["watch", "j1", "--server", server.address]) == 130
    assert capsys.readouterr().err == "fractune: stopped; jobs/j1 goes on\n"
    assert server.cancelled == []


@pytest.mark.parametrize(
    ("stop", "code"), [(KeyboardInterrupt(), 130), (Stopped(signal.SIGTERM), 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_job_that_a_signal_cancels_is_named_in_one_line(
    server: ScriptedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stop: BaseException,
    code: int,
) -> None:
    def raise_stop(*_: object) -> None:
        raise stop

    (tmp_path / "m.onnx").write_bytes(b"a model")
    monkeypatch.setattr(LeavableView, "show", raise_stop)
    tune = ["tune", str(tmp_path / "m.onnx"), "--shares", "cpu:1", "--out-dir", str(tmp_path / "out")]
    assert main([*tune, "--server", server.address]) == code
    assert capsys.readouterr().err == "fractune: stopped; jobs/j1 is cancelled\n"
    assert server.cancelled == ["jobs/j1"]


def test_workers_without_a_stack_say_so(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workers", "--server", server.address]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(jobs, "session", lambda *_, **__: closing(Client(server.address)))
    assert main(["workers", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith(f"no stack is running in {tmp_path}: this command starts ")


def test_jobs_watch_cancel_and_bundle(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    at = ["--server", server.address]
    assert main(["jobs", "--json", *at]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [job["state"] for job in listed] == ["queued", "tuning", "tuning", "done"]
    assert main(["jobs", *at]) == 0
    assert "cpu:1, cpu:2" in capsys.readouterr().out
    assert main(["watch", "j1", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bundle"] == "bundles/b1"
    assert main(["watch", "j1", "--json", "--out", "fetched.fractune", *at]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bundle"] == str(tmp_path / "fetched.fractune")
    assert (tmp_path / "fetched.fractune").read_bytes() == bundle_bytes()
    assert main(["cancel", "j1", *at]) == 0
    assert capsys.readouterr().out == "jobs/j1 is cancelled\n"
    assert server.cancelled == ["jobs/j1"]
    assert main(["bundle", "j1", *at]) == 0
    assert (tmp_path / "m.fractune").read_bytes() == bundle_bytes()
    capsys.readouterr()
    assert main(["bundle", "nobody", *at]) == 9
    assert "no job 'jobs/nobody'" in only_line(capsys.readouterr().err)
    assert main(["workers", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["role"] == "build"
    assert main(["workers", *at]) == 0
    assert "workers/w1" in capsys.readouterr().out


def test_a_reason_stands_under_the_table_of_jobs_and_widens_no_row(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script[-1].message = reason = "no operator's name contains 'zzz'; " + "m.onnx " * 100
    assert main(["jobs", "--server", server.address]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    assert last.endswith(reason)
    assert max(map(len, rows)) < 150
