"""What a machine has of CUDA, read from what its driver leaves in /proc."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from fractune_workers.inventory.cuda import LIBRARIES, LibraryHere, driver_version, gpu_names, libraries, look_for_cuda
from tests.support.paths import REPOSITORY

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs)\nGCC version: 12\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"


@pytest.mark.parametrize(("text", "version"), [(OPEN, "580.65.06"), (CLOSED, "535.183.01"), ("something else", "")])
def test_the_version_of_the_kernel_module(tmp_path: Path, text: str, version: str) -> None:
    (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path) == version


def test_the_names_of_the_gpus(tmp_path: Path) -> None:
    for number, name in enumerate(["NVIDIA H200", "NVIDIA A30"]):
        folder = tmp_path / f"gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 64\n")
    assert gpu_names(tmp_path) == ["NVIDIA H200", "NVIDIA A30"]


def test_without_a_driver_there_is_nothing(tmp_path: Path) -> None:
    assert driver_version(tmp_path) == ""
    assert gpu_names(tmp_path) == []


def test_looking_does_not_open_a_gpu() -> None:
    here = look_for_cuda()
    assert bool(here.gpus) <= bool(here.driver)
    assert all(compiler.name for compiler in here.compilers)
    assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/nvidia" in line]


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
