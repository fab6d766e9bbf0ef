from typing import Any

import pytest

from fractune.dashboard.views import planning
from fractune.features.fit.fit import fit_of_job
from fractune_core.analysis import limit_fitting
from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import record
from tests.support.processes.scripted_server import ScriptedServer


@pytest.fixture(autouse=True)
def ended(server: ScriptedServer) -> None:
    """The newest job is the ended one."""
    server.script = server.script[-1:]
    server.records = [to_proto(record("r1", job=server.script[-1].name), pb.Record)]


_FOUND: list[tuple[Any, Any]] = []


@pytest.fixture(autouse=True)
def searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least limit for a form is searched for once, by an eighth of the requests: pages show whatever is found."""
    monkeypatch.setattr(limit_fitting, "_REQUESTS", 500)

    def once(*given: Any) -> Any:
        for known, found in _FOUND:
            if known == given:
                return found
        _FOUND.append((given, fit_of_job(*given)))
        return _FOUND[-1][1]

    monkeypatch.setattr(planning, "fit_of_job", once)
