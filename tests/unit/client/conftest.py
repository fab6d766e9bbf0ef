import logging
import signal
from collections.abc import Iterator

import pytest

from tests.support.client_samples import bundle_bytes, job_script
from tests.support.processes.scripted_server import ScriptedServer, serving


@pytest.fixture(autouse=True)
def process_restored() -> Iterator[None]:
    """The command line takes these signals for itself, and some commands log to the standard error of their time."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
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
