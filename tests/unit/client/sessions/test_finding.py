"""Which server is meant: named, from the environment, or found in the state folder."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fractune
from fractune.cli import main
from fractune.features.matrix.matrix import operator_tables
from fractune.local.state import LOCK_FILE, StackEntry, default_state_dir, open_state
from fractune.server.job_status import job_status
from fractune.server.rpc import RpcClient
from fractune.sessions.session import named_server, server_address
from fractune.text.output_files import new_bundle
from fractune_core.codec.messages import to_proto
from fractune_core.errors import BadRequest, ServerUnreachable, ShareUnavailable
from fractune_core.pb import fractune_pb2 as pb
from tests.support.certificates import Authority
from tests.support.client_samples import bundle_bytes, granted, job_script
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


REFUSAL = ShareUnavailable("no worker offers cpu:2; offered: cpu:1")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The folder of a stack with one worker, for cpu:1."""
    servicer = ScriptedServer()
    servicer.fail_create = REFUSAL
    servicer.offered = [pb.OfferedShare(granted=to_proto(granted(), pb.GrantedShare), workers=1)]
    path = tmp_path / "my state"
    with serving(servicer) as server, open_state(path) as folder:
        folder.publish_address(server.address, for_others=True)
        yield path


@pytest.mark.parametrize("more", [["--detach"], ["--quiet"]])
def test_the_error_names_the_stack_its_shares_and_the_command_with_the_missing_one(
    state: Path, tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"model")
    assert main(["tune", str(model), "--shares", "cpu:2", "--state", str(state), *more]) == REFUSAL.exit_code
    assert (
        f"{REFUSAL}. The stack of 'fractune up' in {state} has workers for cpu:1. "
        f"Stop it, then start it by: fractune up --shares cpu:1,cpu:2 --state '{state}'"
    ) in capsys.readouterr().err


def test_another_refusal_stays_as_it_is(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"model")
    assert main(["tune", str(model), "--shares", "cpu:1", "--state", str(state), "--detach"]) == REFUSAL.exit_code
    assert capsys.readouterr().err == f"fractune: {REFUSAL}\n"


@pytest.mark.parametrize(("out", "written"), [(None, "net.fractune"), ("served/n.fractune", "served/n.fractune")])
def test_out_is_a_file(out: str | None, written: str) -> None:
    assert new_bundle(out, "net.onnx", force=False).path == Path(written).absolute()


@pytest.mark.parametrize(
    ("out", "written"),
    [
        *((name, "x.fractune") for name in ("x.onnx", "x.pt2", "x.fused", "x.bin")),
        ("a/net.json", "a/net.fractune"),
        *((name, f"{name}/net.fractune") for name in ("folder", "folder.d", "none")),
        ("", "net.fractune"),
    ],
)
def test_another_ending_is_refused_with_a_name_to_write(out: str, written: str, tmp_path: Path) -> None:
    for name in ("folder", "folder.d"):
        (tmp_path / name).mkdir()
    message = f"--out {tmp_path / out}: this is not the name of a bundle; write a file such as {tmp_path / written}"
    with pytest.raises(BadRequest, match=f"^{re.escape(message)}$"):
        new_bundle(tmp_path / out, "net.onnx", force=False)


def test_tables_are_of_the_operators_that_the_job_was_about() -> None:
    job = job_status(job_script()[-1])
    assert [each.selected for each in job.operators] == [True, False]
    with serving(ScriptedServer()) as server, RpcClient(server.address) as client:
        server.tables = [
            pb.OperatorTable(operator=pb.Operator(display_name=each.name, workload_hash=each.workload_hash))
            for each in job.operators
        ]
        assert [table.name for table in operator_tables(client, job)] == ["fused_conv2d"]
