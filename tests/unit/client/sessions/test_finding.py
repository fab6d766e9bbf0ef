"""Which server is meant: named, from the environment, or found in the state folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import fractune
from fractune.cli import main
from fractune.local.state import LOCK_FILE, StackEntry, default_state_dir, open_state
from fractune.sessions.session import named_server, server_address
from fractune_core.errors import BadRequest, ServerUnreachable
from tests.support.certificates import Authority
from tests.support.client_samples import bundle_bytes, job_script
from tests.support.processes.scripted_server import ScriptedServer, serving


def test_what_the_caller_names_goes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRACTUNE_SERVER", "env:1")
    assert named_server(None, "typed:1") == "typed:1"
    assert named_server(None, None) == "env:1"
    assert named_server(tmp_path, None) is None
    with pytest.raises(BadRequest, match="exclude each other"):
        named_server(tmp_path, "typed:1")
    monkeypatch.setenv("FRACTUNE_SERVER", "")
    assert named_server(None, None) is None


def test_the_environment_names_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRACTUNE_STATE", str(tmp_path))
    assert default_state_dir() == tmp_path
    with open_state(tmp_path) as folder:
        folder.publish_address("127.0.0.1:5", for_others=True)
        with fractune.connect() as client:
            assert client.address == "127.0.0.1:5"
        monkeypatch.setenv("FRACTUNE_SERVER", "env:1")
        with fractune.connect() as client:
            assert client.address == "env:1"


def test_the_stack_of_another_command_is_for_questions_only(tmp_path: Path) -> None:
    with open_state(tmp_path) as folder:
        with pytest.raises(ServerUnreachable, match="is still starting; try again"):
            server_address(tmp_path, lasting=False)
        folder.publish_address("unix:/socket", for_others=False)
        assert server_address(tmp_path, lasting=False) == "unix:/socket"
        with pytest.raises(ServerUnreachable, match=rf"ends with the command that started it \(pid {os.getpid()}\)"):
            server_address(tmp_path, lasting=True)


@pytest.mark.parametrize("argv", [["watch", "j1"], ["jobs"], ["cancel", "j1"]])
def test_a_found_stack_is_spoken_to_in_plain_text_whatever_the_environment_says(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority.make(tmp_path / "authority")
    monkeypatch.setenv("FRACTUNE_CA", str(authority.cert))
    with serving(ScriptedServer()) as server, open_state(tmp_path / "state") as folder:
        server.script = job_script()
        folder.publish_address(server.address, for_others=True)
        assert main([*argv, "--state", str(folder.path)]) == 0, capsys.readouterr().err
        if argv[0] == "jobs":  # which does not wait for a server to come back
            assert main([*argv, "--server", server.address]) == 5
            assert "TLS" in capsys.readouterr().err


def test_a_job_is_left_to_a_found_stack_in_plain_text_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRACTUNE_CA", str(Authority.make(tmp_path / "authority").cert))
    model = tmp_path / "m.onnx"
    model.write_bytes(b"a model")
    with serving(ScriptedServer()) as server, open_state(tmp_path / "state") as folder:
        server.script = job_script()
        folder.publish_address(server.address, for_others=True)
        argv = ["tune", str(model), "--shares", "cpu:1", "--detach", "--state", str(folder.path)]
        assert main(argv) == 0, capsys.readouterr().err
        assert capsys.readouterr().out == f"{server.script[0].name}\n"


@pytest.mark.parametrize("detach", [True, False])
def test_a_job_for_a_found_stack_leaves_out_the_shares_that_it_could_not_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, detach: bool
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"a model")
    with serving(ScriptedServer()) as server, open_state(tmp_path / "state") as folder:
        server.script = job_script()
        server.bundles[server.script[-1].result.bundle] = bundle_bytes()
        for job in server.script:
            job.spec.skipped_shares["cpu:1500m"] = "busy"
        folder.publish_address(server.address, for_others=True, skipped_shares={"cpu:1500m": "busy"})
        argv = ["tune", str(model), "--shares", "cpu:2,cpu:1500m", "--state", str(folder.path), "--json"]
        assert main([*argv, *(["--detach"] if detach else ["--out-dir", str(tmp_path)])]) == 13
        (spec,) = server.specs
    assert (list(spec.shares), dict(spec.skipped_shares)) == (["cpu:2"], {"cpu:1500m": "busy"})
    said = capsys.readouterr()
    assert said.err == "fractune: cpu:1500m is skipped: busy\n"
    assert json.loads(said.out.splitlines()[-1])["skipped_shares"] == {"cpu:1500m": "busy"}


def test_no_stack_and_a_dead_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachable, match=f"no stack is running in {tmp_path}; start one with 'fractune up'"):
        server_address(tmp_path, lasting=False)
    (tmp_path / LOCK_FILE).write_text(StackEntry(4, "127.0.0.1:5", for_others=True).to_text())
    with pytest.raises(ServerUnreachable, match=r"has died \(pid 4 is gone\); start it again with 'fractune up'"):
        server_address(tmp_path, lasting=True)
