"""Commands that follow a job, and a server that goes away meanwhile: how long they wait, and what they say."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.cli_process import only_line, start_fractune, stopped_at_end
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import model_bytes, running_server


@pytest.mark.long
def test_commands_wait_for_their_server_say_so_and_go_on(tmp_path: Path) -> None:
    with running_redis() as url, simulated_fleet(url) as fleet, contextlib.ExitStack() as commands:
        fleet.workers["build-1"].hold.set()
        with running_server(url, tmp_path / "state") as server, server.client() as client:
            name = client.create(client.upload(model_bytes(("conv2d", 1))), trials=2).name
            client.wait(name, lambda job: job.state == pb.JOB_STATE_TUNING)
            to_server = ("watch", name, "--server", server.address)
            patient, as_json, impatient = (
                commands.enter_context(stopped_at_end(start_fractune(*to_server, *more)))
                for more in ((), ("--json",), ("--reconnect-s", "0.5"))
            )
            for each in (patient, as_json, impatient):
                assert each.stdout is not None
                assert name in each.stdout.readline()
            address = server.address
            server.kill()
        _, said = impatient.communicate(timeout=60)
        assert impatient.returncode == 5
        assert only_line(said).startswith(f"fractune: no fractune server answers at {address}; ")
        assert patient.stderr is not None
        assert patient.stderr.readline() == f"waiting for the server at {address}, which has been away for 5 s of 60\n"
        with running_server(url, tmp_path / "state", listen=address):
            fleet.workers["build-1"].hold.clear()
            shown, _ = patient.communicate(timeout=120)
            assert patient.returncode == 0
            assert "done" in shown
            told, said = as_json.communicate(timeout=120)
            assert (as_json.returncode, said) == (0, "")
    waiting = [event for event in map(json.loads, told.splitlines()) if event.get("event") == "waiting"]
    assert waiting
    assert waiting[0] == {"event": "waiting", "server": address, "away_s": waiting[0]["away_s"], "reconnect_s": 60.0}
    assert 5 <= waiting[0]["away_s"] < 10
