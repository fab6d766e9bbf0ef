"""The gates of examples/ci/: their own lines, run for a small model as a runner runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import write_model

pytestmark = [pytest.mark.alone, pytest.mark.long]
_GOAL_MISSED = 10
_SCRIPTS: dict[str, Callable[[Mapping[str, Any]], Sequence[str]]] = {
    "github.yml": lambda file: [step["run"] for step in file["jobs"]["gate"]["steps"] if "run" in step],
    "gitlab.yml": lambda file: [*file["gate"]["before_script"], *file["gate"]["script"]],
}


@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_gate_tunes_and_compares_with_the_last_release(name: str, tmp_path: Path) -> None:
    file = yaml.safe_load((REPOSITORY / "examples" / "ci" / name).read_text(encoding="utf-8"))
    install, *lines = _SCRIPTS[name](file)
    assert install.startswith("pip install 'fractune[")
    write_model(tmp_path / "model.onnx")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for release in (1, 2):
        for line in lines:
            ended = subprocess.run(
                ["bash", "-ec", line.replace("--minutes 10", "--minutes 0.1")],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=env,
                timeout=240,
                check=False,
            )
            assert ended.returncode == 0 or (ended.returncode == _GOAL_MISSED and " tune " in line), ended.stderr
        assert ("released.fractune -> model.fractune" in ended.stdout) == (release == 2)
        shutil.copy(tmp_path / "model.fractune", tmp_path / "released.fractune")
