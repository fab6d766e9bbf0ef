"""The packages that ask a GPU's driver: missing, too old, broken, or fine. No GPU."""

from __future__ import annotations

import importlib
import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from workers.gpu.libraries import LIBRARIES, LibraryHere, libraries

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
GOOD = {"nvidia-ml-py": "13.615.71", "cuda-bindings": "13.0.1"}


def stage(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], broken: str = "") -> dict[str, LibraryHere]:
    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    def import_module(name: str) -> None:
        if name == broken:
            raise ImportError("built for another Python")

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib, "import_module", import_module)
    return {each.package: each for each in libraries()}


def test_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stage(monkeypatch, GOOD)
    assert {package: (each.version, each.fault) for package, each in found.items()} == {
        package: (version, "") for package, version in GOOD.items()
    }


def test_a_package_that_is_missing_old_or_broken_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stage(monkeypatch, {})["cuda-bindings"].fault == "it is not installed"
    old = stage(monkeypatch, GOOD | {"nvidia-ml-py": "13.12.0"})["nvidia-ml-py"]
    assert old.fault == "there is 13.12.0, and 13.580 or newer is needed"
    broken = stage(monkeypatch, GOOD, broken="cuda.bindings.driver")["cuda-bindings"]
    assert broken.fault == "there is 13.0.1, and cuda.bindings.driver cannot be imported: built for another Python"


def test_what_is_asked_for_is_what_the_extra_says() -> None:
    extra = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]["cuda"]
    for package, (_, oldest) in LIBRARIES.items():
        asked = next(line for line in extra if line.startswith(package))
        assert asked.removeprefix(package).split(",")[0] == ">=" + ".".join(str(number) for number in oldest)
