"""What the wheel holds: the five packages whole, and nothing that another distribution could have as well."""

from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def files(wheel: Path, release_check: SimpleNamespace) -> list[str]:
    names: list[str] = release_check.files_of(wheel)
    return names


def test_the_wheel_is_what_a_release_needs(files: list[str], release_check: SimpleNamespace) -> None:
    assert list(release_check.wrong_wheel(files)) == []


def test_it_brings_five_names_into_site_packages(files: list[str]) -> None:
    tops = {name.split("/")[0] for name in files}
    (info,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops - {info} == {"fractune", "fractune_core", "fractune_runtime", "fractune_server", "fractune_workers"}
    assert [name for name in files if "test" in name.lower()] == []


@pytest.mark.parametrize(
    "lost", ["fractune_server/py.typed", "fractune_core/pb/fractune_pb2_grpc.pyi", "fractune_workers/main.py"]
)
def test_a_file_that_is_lost_is_named(files: list[str], release_check: SimpleNamespace, lost: str) -> None:
    (complaint,) = release_check.wrong_wheel([name for name in files if name != lost])
    assert complaint.startswith("wheel: ")
    assert lost.split("/", maxsplit=1)[0] in complaint


def test_a_package_that_does_not_belong_there_is_named(files: list[str], release_check: SimpleNamespace) -> None:
    assert list(release_check.wrong_wheel([*files, "workers/__init__.py"])) == ["wheel: workers does not belong there"]
