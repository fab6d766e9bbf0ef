from __future__ import annotations

import pytest

from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import record
from tests.support.processes.scripted_server import ScriptedServer


@pytest.fixture(autouse=True)
def ended(server: ScriptedServer) -> None:
    """The newest job is the ended one."""
    server.script = server.script[-1:]
    server.records = [to_proto(record("r1", job=server.script[-1].name), pb.Record)]
