"""The locks hold what pyproject.toml asks for, by hash, name no index, and each is a part of a larger one."""

import re
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCKED_EXTRAS = {
    "runtime": ("local", "postgres"),
    "gpu": ("local", "postgres", "cuda"),
    "triton": ("triton",),
    "dev": ("local", "postgres", "run", "cuda", "plot", "plan", "sign", "trace"),
}
"""by the lock's name; `dev` has the group `dev` as well"""
LOCKS = {name: (REPOSITORY / "locks" / f"{name}.lock").read_text(encoding="utf-8") for name in LOCKED_EXTRAS}
FOR_DEVELOPMENT_ALONE = {"pytest", "mypy", "ruff", "hypothesis", "magika", "matplotlib", "grpcio-tools"}
FOR_DEVELOPMENT_ALONE.add("nvidia-cuda-nvdisasm")


def direct(extra: str) -> Iterator[str]:
    """What an extra asks for, the extras that it names resolved."""
    for line in EXTRAS[extra]:
        asked = Requirement(line)
        if asked.name == PROJECT["project"]["name"]:
            for other in asked.extras:
                yield from direct(other)
        else:
            yield line


def asked_for(lock: str) -> set[str]:
    group = PROJECT["dependency-groups"]["dev"] if lock == "dev" else []
    extras = (line for extra in LOCKED_EXTRAS[lock] for line in direct(extra))
    return {*PROJECT["project"]["dependencies"], *extras, *group}


def locked(lock: str) -> dict[str, set[str]]:
    """Each locked name, with its version or versions (one for each Python where they differ)."""
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ \\]+)", LOCKS[lock], re.MULTILINE):
        versions.setdefault(canonicalize_name(name), set()).add(version)
    return versions


@pytest.mark.parametrize("lock", LOCKS)
def test_what_is_asked_for_is_locked(lock: str) -> None:
    there = locked(lock)
    for requirement in asked_for(lock):
        asked = Requirement(requirement)
        versions = there.get(canonicalize_name(asked.name), set())
        assert versions, f"{asked.name} is not in locks/{lock}.lock; run: make lock"
        unfit = [version for version in versions if version not in asked.specifier]
        assert unfit == [], f"{requirement} does not allow the {unfit} of locks/{lock}.lock; run: make lock"


@pytest.mark.parametrize(("smaller", "larger"), [("runtime", "gpu"), ("gpu", "dev")])
def test_what_is_shipped_is_what_is_tested(smaller: str, larger: str) -> None:
    assert locked(smaller).items() <= locked(larger).items()


def test_triton_is_all_that_its_lock_adds() -> None:
    added = {name for name, versions in locked("triton").items() if locked("dev").get(name) != versions}
    assert added == {"triton"}


def test_images_carry_nothing_for_development() -> None:
    assert locked("dev").keys() >= FOR_DEVELOPMENT_ALONE
    assert locked("gpu").keys() & FOR_DEVELOPMENT_ALONE == set()


def test_the_runtime_carries_nothing_for_gpus() -> None:
    for_gpus = {name for name in locked("dev") if name.startswith(("nvidia-", "cuda-"))}
    assert for_gpus - FOR_DEVELOPMENT_ALONE <= locked("gpu").keys()
    assert locked("runtime").keys() & for_gpus == set()


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_file_has_its_hash(lock: str) -> None:
    entries = re.split(r"\n(?=[^\s#])", re.sub(r"^#.*\n", "", LOCKS[lock], flags=re.MULTILINE).strip())
    assert entries
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_names_an_index(lock: str) -> None:
    assert "://" not in LOCKS[lock]
    assert "--index-url" not in LOCKS[lock]


def test_one_package_is_asked_for_in_the_same_versions_by_every_extra() -> None:
    asked: dict[str, set[str]] = {}
    for extra in EXTRAS:
        for line in direct(extra):
            asked.setdefault(Requirement(line).name, set()).add(line)
    assert [lines for lines in asked.values() if len(lines) > 1] == []
