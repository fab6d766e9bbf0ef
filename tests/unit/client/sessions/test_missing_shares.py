"""The error of a job for shares that the running stack does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fractune.cli import main
from fractune.local.state import open_state
from fractune_core.codec.messages import to_proto
from fractune_core.errors import ShareUnavailable
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import granted
from tests.support.processes.scripted_server import ScriptedServer, serving

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
