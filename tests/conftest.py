"""What holds for all tests."""

from __future__ import annotations

import functools
import gc
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.order import mixed

if TYPE_CHECKING:
    from tests.support.processes.postgres_process import Postgres

# The tests start hundreds of Python processes: what they import is compiled once and not in each of them.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Whoever runs the tests may use a server of their own, or a PostgreSQL.
_OWN = (
    "FRACTUNE_SERVER",
    "FRACTUNE_STATE",
    "FRACTUNE_REDIS",
    "FRACTUNE_DATABASE",
    "FRACTUNE_DATABASE_PASSWORD_FILE",
    "PGHOST",
    "PGPASSWORD",
    "PGPASSFILE",
    "PGOPTIONS",
)
for _name in _OWN:
    os.environ.pop(_name, None)

# FRACTUNE_TEST_CPU replaces the default target, in this process and in all that it starts (CONTRIBUTING.md).
if os.environ.get("FRACTUNE_TEST_CPU"):
    _other_cpu = str(Path(__file__).parent / "support" / "other_cpu")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_other_cpu, os.environ.get("PYTHONPATH")]))
    runpy.run_path(str(Path(_other_cpu) / "sitecustomize.py"))

# These machines are shared: how long an example takes says nothing about the code. Each run draws other examples, so
# that few a run are many in a week; `pytest --hypothesis-profile=thorough` draws many at once.
settings.register_profile("quick", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("quick")

# What a script starts in the background ignores Ctrl-C, and what `nohup` starts ignores a closed terminal. So would
# every command that a test stops by one of them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector leaves out what lives as long as the process: thousands of tests, and what they import."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file stay together, in their order."""
    place = {file: at for at, file in enumerate(mixed(dict.fromkeys(map(_file_of, items))))}
    items.sort(key=lambda item: place[_file_of(item)])


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """The locks of the cores lie in this folder. Those who read no figures wait for no measurement of another process;
    the tests that measure for real wait for each other.
    """
    with pytest.MonkeyPatch.context() as environment:
        if item.get_closest_marker("alone") is None:
            environment.setenv("XDG_RUNTIME_DIR", _runtime_folder().name)
        return (yield)


@functools.cache
def _runtime_folder() -> tempfile.TemporaryDirectory[str]:
    """Of this process. Its path is short: sockets of MPS lie in it, and have 107 bytes for theirs."""
    return tempfile.TemporaryDirectory(prefix="fractune-", ignore_cleanup_errors=True)


@pytest.fixture(autouse=True)
def affinity() -> Iterator[set[int]]:
    """The cores that this process may use. They are given back: a test that takes some away leaves none to the next."""
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


@pytest.fixture
def two_cpus(affinity: set[int]) -> list[int]:
    """Two of the cores that this process may use. The test is skipped where there is only one."""
    if len(affinity) < 2:
        pytest.skip("one CPU")
    return sorted(affinity)[:2]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One for all tests of a process that ask for it."""
    from tests.support.processes.postgres_process import running_postgres

    with running_postgres() as server:
        yield server
