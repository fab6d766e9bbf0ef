"""`fractune jobs`, `watch`, `cancel`, `workers`, and `bundle` of a job, against a scripted server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fractune.cli import main
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
