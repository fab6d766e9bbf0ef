"""A user's model script: refused without consent; with it, run in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fractune.cli import main
from fractune.errors import BadModel, FractuneError
from fractune.models.source import model_file
from fractune_core.files.scripts import REFUSAL
from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import only_line

MODULE = """
@I.ir_module
class {name}:
    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        y: R.Tensor((2, 8), "float32") = R.nn.relu(x)
        return y
"""
IMPORTS = "from tvm.script import ir as I\nfrom tvm.script import relax as R\n"

# In one process, which is not this one: the client's tests must stay without TVM's compiler.
_CONVERTS = """
import json, sys
from pathlib import Path
import tvm
from fractune.models.script_child import module_json
from fractune_core.errors import BadModel
said = {}
for path in map(Path, sys.argv[1:]):
    try:
        said[path.stem] = str(tvm.ir.load_json(module_json(path))["main"].params)
    except BadModel as error:
        said[path.stem] = str(error)
print(json.dumps(said))
"""

SCRIPTS = {
    "imports": IMPORTS + MODULE.format(name="Net"),
    "printed": "# from tvm.script import ir as I\n" + MODULE.format(name="Module"),
    "two_names": IMPORTS + MODULE.format(name="Net") + "Same = Net\n",
    "one_hidden": IMPORTS + MODULE.format(name="Net") + MODULE.format(name="_Part"),
    "sibling": "from imports import Net\n",
    "not_as_main": IMPORTS + MODULE.format(name="Net") + 'if __name__ == "__main__":\n    raise ValueError\n',
    "two": IMPORTS + MODULE.format(name="Net") + MODULE.format(name="Other"),
    "none": "x = 1\n",
    "fails": "x = 1\nraise ValueError('what is wrong\\nand more')\n",
    "leaves": "raise SystemExit\n",
    "broken": "x = (\n",
}
MADE = "(x,)"
SAYS = {
    **dict.fromkeys(("imports", "printed", "two_names", "one_hidden", "sibling", "not_as_main"), MADE),
    "two": "makes several IRModules (Net, Other); let the names of all but one begin with an underscore",
    "none": "makes no tvm.IRModule; give one a name at the file's top level, as `@I.ir_module` does",
    "fails": "its code failed at line 2: ValueError: what is wrong",
    "leaves": "its code failed at line 1: SystemExit",
    "broken": "its code failed: SyntaxError: '(' was never closed (broken.py, line 1)",
}

COMMANDS = {
    "tune": ["tune", "{}", "--shares", "cpu:1"],
    "tune --detach": ["tune", "{}", "--shares", "cpu:1", "--detach"],
    "bundle": ["bundle", "{}", "--shares", "cpu:1"],
    "matrix": ["matrix", "{}", "--shares", "cpu:1,cpu:2"],
    "knee": ["knee", "{}", "--shares", "cpu:1,cpu:2"],
    "match": ["match", "{}", "--share", "cpu:1"],
    "fuse": ["fuse", "{}", "{}"],
    "noise": ["noise", "--share", "cpu:1", "--model", "{}"],
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SCRIPTS["imports"])
    return path


def test_scripts_become_one_module_or_one_line(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.py" for name in SCRIPTS]
    for path in paths:
        path.write_text(SCRIPTS[path.stem])
    command = [sys.executable, "-c", _CONVERTS, *map(str, paths)]
    ended = subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert json.loads(ended.stdout) == SAYS


def test_with_consent_the_code_runs_elsewhere_and_the_file_is_json_while_it_is_needed(
    script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text(f"{SCRIPTS['imports']}\nimport os\nprint(os.getppid())")
    with model_file(script, run_script=True) as path:
        assert path.name == "net.json"
        assert "relax.expr.Function" in {node["type"] for node in json.loads(path.read_text())["nodes"]}
    assert not path.exists()
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "net.py: running this file's Python code on this machine, to get its IRModule"
    assert len(err.splitlines()) == 2


def test_a_script_that_ends_its_process_is_told(script: Path) -> None:
    script.write_text("import os\nos._exit(0)\n")
    expected = r"net\.py: its code ended the process with code 0, before it was read"
    with pytest.raises(BadModel, match=expected), model_file(script, run_script=True):
        pass


def test_without_tvm_the_extra_is_named(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name == "tvm" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with (
        pytest.raises(FractuneError, match=r"needs tvm; install 'fractune\[local\]'"),
        model_file(script, run_script=True),
    ):
        pass


@pytest.mark.parametrize("name", ["net.py", "net.txt", "net"])
def test_a_script_is_known_by_its_name_or_by_its_words(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(SCRIPTS["printed"])
    with pytest.raises(BadModel) as refused, model_file(path):
        pass
    assert str(refused.value) == f"{name}: {REFUSAL}"


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_every_command_that_takes_a_model_refuses_a_script(
    words: list[str], script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRACTUNE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("FRACTUNE_SERVER", "127.0.0.1:1")  # nobody is there, and nobody is asked
    assert main([word.format(script) for word in words]) == 3
    assert only_line(capsys.readouterr().err) == f"fractune: net.py: {REFUSAL}"


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_every_command_that_takes_a_model_can_be_allowed_to_run_one(
    words: list[str], script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversion is stood in for: what it is given is enough."""
    asked: list[Path] = []

    def refuse(path: Path, folder: Path) -> Path:
        assert folder.is_dir()
        asked.append(path)
        raise BadModel("it was run")

    monkeypatch.setattr("fractune.models.source.json_of_script", refuse)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRACTUNE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("FRACTUNE_SERVER", "127.0.0.1:1")
    code = main([*(word.format(script) for word in words), "--run-script"])
    assert (code, asked) == (3, [script]), capsys.readouterr().err
