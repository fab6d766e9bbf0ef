"""The packages that ask a GPU's driver: missing, too old, broken, or fine. No GPU."""

from __future__ import annotations

import importlib.metadata
import tomllib

import pytest

from fractune_workers.inventory.cuda import LIBRARIES, LibraryHere, libraries
from tests.support.paths import REPOSITORY

PYPROJECT = REPOSITORY / "pyproject.toml"
GOOD = {"nvidia-ml-py": "13.615.71", "cuda-bindings": "13.0.1"}


def stage(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], **modules: str) -> dict[str, LibraryHere]:
    """What is found where these packages are installed; another module stands for each of theirs."""

    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    for package, (_, oldest) in LIBRARIES.items():
        monkeypatch.setitem(LIBRARIES, package, (modules.get(package.partition("-")[0], "json"), oldest))
    monkeypatch.setattr(importlib.metadata, "version", version)
    return {each.package: each for each in libraries()}


def test_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stage(monkeypatch, GOOD)
    assert {package: (each.version, each.fault) for package, each in found.items()} == {
        package: (version, "") for package, version in GOOD.items()
    }


def test_a_package_that_is_missing_or_old_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stage(monkeypatch, {})["cuda-bindings"].fault == "it is not installed"
    old = stage(monkeypatch, GOOD | {"nvidia-ml-py": "13.12.0"})["nvidia-ml-py"]
    assert old.fault == "there is 13.12.0, and 13.580 or newer is needed"


def test_a_package_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = stage(monkeypatch, GOOD, cuda="nowhere_to_be_found")["cuda-bindings"]
    assert broken.fault == (
        "there is 13.0.1, and nowhere_to_be_found cannot be imported: "
        "ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    )


def test_what_is_asked_for_is_what_the_extra_says() -> None:
    extra = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]["cuda"]
    for package, (_, oldest) in LIBRARIES.items():
        asked = next(line for line in extra if line.startswith(package))
        assert asked.removeprefix(package).split(",")[0] == ">=" + ".".join(str(number) for number in oldest)
