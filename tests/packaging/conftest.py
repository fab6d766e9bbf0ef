"""The wheel, built once, and the environment of the client alone, which it is installed into."""

import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.paths import REPOSITORY
from tests.support.processes.clean_environments import Environment, closure, empty_environment, install, link


@pytest.fixture(scope="session")
def release_check() -> SimpleNamespace:
    """What `make release-check` runs."""
    return SimpleNamespace(**runpy.run_path(str(REPOSITORY / "scripts" / "release_check")))


@pytest.fixture(scope="session")
def wheel(release_check: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    for root in release_check.PACKAGES.values():
        shutil.copytree(REPOSITORY / root, sources / root, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(REPOSITORY / name, sources)
    built: Path = release_check.build_wheel(sources, folder)
    return built


@pytest.fixture(scope="session")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install fractune` gives."""
    environment = empty_environment(tmp_path_factory.mktemp("client"))
    install(environment, wheel)
    link(environment, closure(environment.fractune(), ""))
    return environment
