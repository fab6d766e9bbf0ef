from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY


@dataclass(frozen=True)
class Small:
    """A small model, and a bundle that was compiled from it for this host."""

    model: Path
    bundle: Path


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """In a process of its own: the tests of inference run without the compiler."""
    folder = tmp_path_factory.mktemp("small")
    subprocess.run([sys.executable, "-m", "tests.support.real_bundle", str(folder)], check=True, cwd=REPOSITORY)
    return Small(folder / "small.onnx", folder / "small.fractune")
