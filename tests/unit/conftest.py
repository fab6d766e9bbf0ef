"""A real Redis, and compiled bundles, for the unit tests that ask for them."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.support.paths import REPOSITORY
from tests.support.processes.redis_process import running_redis

_MAKER = "tests.support.real_bundle"
BUNDLES = ("small", "by_machine", "encoders", "denormals", "parts", "fused", "listener")


@dataclass(frozen=True)
class Small:
    """A small model, and a bundle that was compiled from it for this host."""

    model: Path
    bundle: Path


@dataclass(frozen=True)
class FusedVariants:
    """Two variants of the small model, and a bundle in which they have the first two of three slots."""

    models: tuple[Path, Path]
    bundle: Path


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture
def connection(redis_url: str) -> Iterator[redis.Redis]:
    """To a Redis that is empty."""
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushall()
        yield connection


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    folder = _compiled("small", tmp_path_factory)
    return Small(folder / "small.onnx", folder / "small.fractune")


@pytest.fixture(scope="session")
def by_machine(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """The small model, and a bundle of it for TVM's virtual machine."""
    folder = _compiled("by_machine", tmp_path_factory)
    return Small(folder / "small.onnx", folder / "small.fractune")


@pytest.fixture(scope="session")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """A detector of speech whose rate is a constant of the bundle."""
    folder = _compiled("listener", tmp_path_factory)
    return Small(folder / "listener.onnx", folder / "listener.fractune")


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundles of `compile_encoders`."""
    return _compiled("encoders", tmp_path_factory)


@pytest.fixture(scope="session")
def denormals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of `compile_denormals`."""
    return _compiled("denormals", tmp_path_factory)


@pytest.fixture(scope="session")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """A model with an operator that cannot be imported, and its bundle in parts."""
    folder = _compiled("parts", tmp_path_factory)
    return Small(folder / "middle.onnx", folder / "middle.fractune")


@pytest.fixture(scope="session")
def fused(tmp_path_factory: pytest.TempPathFactory) -> FusedVariants:
    folder = _compiled("fused", tmp_path_factory)
    return FusedVariants((folder / "variant1.onnx", folder / "variant2.onnx"), folder / "variants.fractune")


def _compiled(what: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a process of its own: the tests of inference run without the compiler. Once for all workers of a run, where
    one process compiles whatever they may ask for: most of its time goes into imports.
    """
    base, kinds = tmp_path_factory.getbasetemp(), [what]
    if "PYTEST_XDIST_WORKER" in os.environ:
        base, kinds = base.parent, list(BUNDLES)
    with (base / f"{kinds[0]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / what).exists():
            for kind in kinds:
                (base / kind).mkdir()
            subprocess.run([sys.executable, "-m", _MAKER, str(base), *kinds], check=True, cwd=REPOSITORY)
    return base / what
