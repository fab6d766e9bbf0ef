"""What holds for all tests."""

from __future__ import annotations

import functools
import gc
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.order import mixed

if TYPE_CHECKING:
    import redis

    from tests.support.processes.postgres_process import Postgres
    from tests.support.real_bundle import FusedVariants, Small

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


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    from tests.support.processes.redis_process import running_redis

    with running_redis() as url:
        yield url


@pytest.fixture
def connection(redis_url: str) -> Iterator[redis.Redis]:
    """To a Redis that is empty."""
    import redis

    with redis.Redis.from_url(redis_url) as connection:
        connection.flushall()
        yield connection


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a kind of bundles, which are compiled once."""
    from tests.support.real_bundle import compiled

    return lambda what: compiled(what, tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def small(compiled: Callable[[str], Path]) -> Small:
    """A small model, and a bundle that was compiled from it for this host."""
    return _pair(compiled("small"), "small")


@pytest.fixture(scope="session")
def by_machine(compiled: Callable[[str], Path]) -> Small:
    """The small model, and a bundle of it for TVM's virtual machine."""
    return _pair(compiled("by_machine"), "small")


@pytest.fixture(scope="session")
def listener(compiled: Callable[[str], Path]) -> Small:
    """A detector of speech whose rate is a constant of the bundle."""
    return _pair(compiled("listener"), "listener")


@pytest.fixture(scope="session")
def in_parts(compiled: Callable[[str], Path]) -> Small:
    """A model with an operator that cannot be imported, and its bundle in parts."""
    return _pair(compiled("parts"), "middle")


def _pair(folder: Path, name: str) -> Small:
    from tests.support.real_bundle import Small

    return Small(folder / f"{name}.onnx", folder / f"{name}.fractune")


@pytest.fixture(scope="session")
def fused(compiled: Callable[[str], Path]) -> FusedVariants:
    from tests.support.real_bundle import FusedVariants

    folder = compiled("fused")
    return FusedVariants((folder / "variant1.onnx", folder / "variant2.onnx"), folder / "variants.fractune")


@pytest.fixture(scope="session")
def encoders(compiled: Callable[[str], Path]) -> Path:
    """A folder with the bundles of `compile_encoders`."""
    return compiled("encoders")


@pytest.fixture(scope="session")
def decoders(compiled: Callable[[str], Path]) -> Path:
    """A folder with the files of `compile_decoders`."""
    return compiled("decoders")


@pytest.fixture(scope="session")
def denormals(compiled: Callable[[str], Path]) -> Path:
    """A folder with the files of `compile_denormals`."""
    return compiled("denormals")
