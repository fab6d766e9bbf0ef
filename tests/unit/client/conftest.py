import json
import logging
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from fractune.models import inspection, open_sizes, sizes_child
from fractune_core.codec.plain_json import checked
from tests.support.client_samples import bundle_bytes, job_script
from tests.support.processes.scripted_server import ScriptedServer, serving

_APART = open_sizes._answer


def _answered_here(order: bytes) -> Any:
    head, _, data = order.partition(b"\n")
    return checked(open_sizes._Answer, sizes_child.examined(json.loads(head), data))


@pytest.fixture
def examined_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph of a model is examined in this process, which takes a tenth of the time."""
    monkeypatch.setattr(open_sizes, "_answer", _answered_here)
    monkeypatch.setattr(inspection, "how_imported", lambda names: [""] * len(names))


@pytest.fixture
def apart(examined_here: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001  after it
    """The graph is examined in a process of its own, as for users."""
    monkeypatch.setattr(open_sizes, "_answer", _APART)


_OURS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM)


@pytest.fixture(autouse=True)
def process_restored() -> Iterator[None]:
    """The command line takes these signals for itself, and some commands log to the standard error of their time."""
    before = {number: signal.getsignal(number) for number in _OURS}
    root, chatty = logging.getLogger(), logging.getLogger("alembic")
    logs = root.handlers[:], root.level, chatty.level
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    root.handlers[:], level, of_chatty = logs
    root.setLevel(level)
    chatty.setLevel(of_chatty)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """It knows a job from its beginning to its end, and the job's bundle."""
    with serving(ScriptedServer()) as running:
        running.script = job_script()
        running.bundles["bundles/b1"] = bundle_bytes()
        yield running
