"""What the docs, the notebook and the gates of examples/ci/ have a reader or a runner run."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import await_event, run_fractune, start_fractune, stopped_at_end, write_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
PAGE = REPOSITORY / "docs" / "quickstart.md"
TUTORIAL = REPOSITORY / "docs" / "tutorial.md"
NOTEBOOK = REPOSITORY / "examples" / "quickstart.ipynb"


def test_the_quickstart_runs(tmp_path: Path) -> None:
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(programs) == 3
    env = {**os.environ, "FRACTUNE_STATE": str(tmp_path / "state")}
    command = [sys.executable, "-c", "\n".join(programs)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "(1, 10)" in ended.stdout
    assert (tmp_path / "small.fractune").is_file()


def test_the_tutorial_runs(tmp_path: Path) -> None:
    """In its order, on a stack of its own ports."""
    env = {"FRACTUNE_STATE": str(tmp_path / "state")}
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    subprocess.run([sys.executable, "-c", programs[0]], cwd=tmp_path, timeout=60, check=True)
    up, *commands = re.findall(r"^    fractune (.+)$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE)
    assert up == "up --shares cpu:1,cpu:2 --dashboard"
    stack = start_fractune(*up.removesuffix(" --dashboard").split(), "--listen", "127.0.0.1:0", "--json", env=env)
    with stopped_at_end(stack):
        await_event(stack, event="ready")
        for command in commands:
            ended = run_fractune(*command.split(), env=env, cwd=tmp_path)
            assert ended.returncode == 0, (command, ended.stdout, ended.stderr)
    assert "speed-up" in ended.stdout
    assert (tmp_path / "better.fractune").is_file()


def test_the_notebook_runs_and_shows_tables_and_a_picture(tmp_path: Path) -> None:
    env = {**os.environ, "FRACTUNE_STATE": str(tmp_path / "state")}
    program = (
        "import nbclient, nbformat, sys\n"
        "notebook = nbformat.read(sys.argv[1], as_version=4)\n"
        "nbclient.NotebookClient(notebook, timeout=240).execute()\n"
        "nbformat.write(notebook, 'run.ipynb')\n"
    )
    command = [sys.executable, "-c", program, str(NOTEBOOK)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=290, check=False)
    assert ended.returncode == 0, ended.stderr
    cells = json.loads((tmp_path / "run.ipynb").read_text(encoding="utf-8"))["cells"]
    shown = [each["data"] for cell in cells for each in cell.get("outputs", ()) if "data" in each]
    assert sum("<table" in "".join(each.get("text/html", "")) for each in shown) == 5
    assert any("<svg" in "".join(each.get("image/svg+xml", "")) for each in shown)


_GOAL_MISSED = 10
_SCRIPTS: dict[str, Callable[[Mapping[str, Any]], Sequence[str]]] = {
    "github.yml": lambda file: [step["run"] for step in file["jobs"]["gate"]["steps"] if "run" in step],
    "gitlab.yml": lambda file: [*file["gate"]["before_script"], *file["gate"]["script"]],
}


def test_the_gates_tune_and_compare_with_the_last_release(tmp_path: Path) -> None:
    """Each service's file has the same commands, which therefore run once."""
    github, gitlab = (
        commands_of(yaml.safe_load((REPOSITORY / "examples" / "ci" / name).read_text(encoding="utf-8")))
        for name, commands_of in _SCRIPTS.items()
    )
    assert github == gitlab
    install, *lines = github
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
