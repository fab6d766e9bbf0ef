"""The generated code under tuner_core/fractune_core/pb is what scripts/stubs makes of protos/ today."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

GENERATED = REPOSITORY / "tuner_core" / "fractune_core" / "pb"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stubs")
    subprocess.run(
        [REPOSITORY / "scripts" / "stubs", out],
        env={**os.environ, "PYTHON": sys.executable},
        check=True,
        capture_output=True,
    )
    return out / "fractune_core" / "pb"


def generated_files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*_pb2*.py*")}


def test_the_generated_code_is_current(fresh: Path) -> None:
    expected, found = generated_files(fresh), generated_files(GENERATED)
    assert expected, "scripts/stubs wrote nothing"
    stale = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    assert stale == [], f"{stale} in {GENERATED} do not fit protos/; run: make stubs"


def test_every_proto_stands_where_its_package_is() -> None:
    protos = [path.relative_to(REPOSITORY / "protos") for path in (REPOSITORY / "protos").rglob("*.proto")]
    assert protos
    assert {path.parent for path in protos} == {Path("fractune_core/pb")}
