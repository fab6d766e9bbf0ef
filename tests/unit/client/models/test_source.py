"""Models as callers have them: paths, shapes, objects of packages, and scripts that run in a process of their own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import fractune
from fractune.cli import main
from fractune.errors import BadModel, FractuneError
from fractune.models.source import is_model_script, model_file
from fractune_core.files.model_files import SCRIPT_REFUSED
from tests.support.client_samples import bundle_bytes
from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import only_line, write_model
from tests.support.processes.scripted_server import ScriptedServer


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"a model")
    for given in (path, str(path)):
        with model_file(given) as found:
            assert found == path


def test_a_pipe_is_no_model_and_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(pipe := tmp_path / "m.onnx")
    both_ends = os.open(pipe, os.O_RDWR)  # who opens it nevertheless finds a script
    try:
        os.write(both_ends, IMPORTS.encode().ljust(1 << 16))
        assert not is_model_script(pipe)
        for command in (["inspect", str(pipe)], ["tune", str(pipe), "--shares", "cpu:1"]):
            assert main(command) == 3
            assert only_line(capsys.readouterr().err).endswith("m.onnx: no such model file")
    finally:
        os.close(both_ends)


def test_an_onnx_model_becomes_a_file_while_it_is_needed(tmp_path: Path) -> None:
    model = onnx.load(write_model(tmp_path / "m.onnx"))
    with model_file(model) as path:
        assert path.name == "model.onnx"
        assert onnx.load(path) == model
    assert not path.parent.exists()


def test_a_program_of_torch_is_known_by_its_type_and_saved_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is not installed for the tests: its `export.save` is stood in for, and a subclass is known too."""

    def save(program: Any, path: Path) -> None:
        path.write_text(f"saved {program.name}")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(export=SimpleNamespace(save=save)))
    exported = type("ExportedProgram", (), {"__module__": "torch.export.exported_program", "name": "it"})
    with model_file(type("Mine", (exported,), {})()) as path:
        assert path.name == "model.pt2"
        assert path.read_text() == "saved it"


def test_a_model_that_its_package_cannot_write_is_a_bad_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: Any) -> None:
        raise ValueError("it holds a lambda")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(export=SimpleNamespace(save=save)))
    program = type("ExportedProgram", (), {"__module__": "torch.export.exported_program"})()
    with (
        pytest.raises(BadModel, match="ExportedProgram cannot be written to a file: it holds a lambda"),
        model_file(program),
    ):
        pass


def test_what_is_no_model_is_refused_with_what_to_pass(tmp_path: Path) -> None:
    (tmp_path / "m.fractune").write_bytes(bundle_bytes())
    for model, says in (
        *((other, r"is not a model: pass a path, an onnx\.ModelProto") for other in (b"bytes", 3, None, object())),
        (tmp_path / "none.onnx", r"none\.onnx: no such model file"),
        (tmp_path, "this is a folder; name the model file in it"),
        (tmp_path / "m.fractune", "this is a bundle, which `fractune run` runs"),
    ):
        with pytest.raises(BadModel, match=says), model_file(model):
            pass


def test_an_error_of_the_block_is_no_bad_model(tmp_path: Path) -> None:
    model = onnx.load(write_model(tmp_path / "m.onnx"))
    with pytest.raises(RuntimeError, match="mine"), model_file(model):
        raise RuntimeError("mine")


def encoder(path: Path) -> Path:
    """An input of an open batch and 8 numbers, one of no known rank, and a weight that is listed as an input."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8]),
        helper.make_tensor_value_info("any", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [8]),
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [8], [0.0] * 8)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [weight],
    )
    onnx.save(helper.make_model(graph), path)
    return path


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"x": [1, 8, 2]}, r"'x' gets 3 axes \(1,8,2\), and has 2 in the model \(\[batch, 8\]\); give 2 sizes"),
        ({"x": [1, 9]}, r"'x' gets 9 at axis 1 \(1,9\), which is 8 in the model \(\[batch, 8\]\); give 8"),
        ({"x": [[1, 8], [1, 9]]}, "'x' gets 9 at axis 1"),
        ({"x": ([1, 9], "const:0")}, "'x' gets 9 at axis 1"),
        ({"w": [8]}, r"no input is named 'w'; the inputs are 'x' \[batch, 8\], 'any' of unknown rank"),
        ({"z": "const:1"}, "no input is named 'z'"),
    ],
)
def test_a_shape_that_contradicts_the_file_names_the_axis_and_both_sizes(
    tmp_path: Path, inputs: dict[str, Any], says: str
) -> None:
    path = encoder(tmp_path / "m.onnx")
    with pytest.raises(BadModel, match=says), model_file(path, inputs=inputs):
        pass
    with pytest.raises(BadModel, match=says), model_file(onnx.load(path), inputs=inputs):
        pass


@pytest.mark.parametrize("inputs", [{"x": [4, 8]}, {"any": [1, 2, 3]}, {"x": "const:1"}, None])
def test_other_shapes_are_left_to_the_server(tmp_path: Path, inputs: dict[str, Any] | None) -> None:
    with model_file(encoder(tmp_path / "m.onnx"), inputs=inputs) as path:
        assert path.name == "m.onnx"
    (tmp_path / "other").write_bytes(b"no model")
    with model_file(tmp_path / "other", inputs=inputs) as path:
        assert path.name == "other"


WITH_INPUTS = {
    "tune": ["--shares", "cpu:1"],
    "tune --detach": ["--shares", "cpu:1", "--detach"],
    "bundle": ["--shares", "cpu:1"],
    "matrix": ["--shares", "cpu:1,cpu:2"],
    "knee": ["--shares", "cpu:1,cpu:2"],
    "match": ["--share", "cpu:1"],
}


@pytest.mark.parametrize("command", WITH_INPUTS)
def test_no_job_is_queued_for_it(
    tmp_path: Path, server: ScriptedServer, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = encoder(tmp_path / "m.onnx")
    given = [
        command.partition(" ")[0],
        str(path),
        *WITH_INPUTS[command],
        "--input",
        "x=1,9",
        "--server",
        server.address,
    ]
    assert main(given) == BadModel.exit_code
    assert "fractune: --input: 'x' gets 9 at axis 1" in capsys.readouterr().err
    assert (server.specs, server.uploads) == ([], 0)


def test_the_client_of_programs_checks_too(tmp_path: Path, server: ScriptedServer) -> None:
    path = encoder(tmp_path / "m.onnx")
    with fractune.connect(server.address) as client:
        with pytest.raises(BadModel, match="inputs: 'x' gets 9 at axis 1"):
            client.submit(path, "cpu:1", inputs={"x": [1, 9]})
        with pytest.raises(BadModel, match="inputs: 'x' gets 9 at axis 1"):
            client.match(path, "cpu:1", inputs={"x": [1, 9]})
    assert server.uploads == 0


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
from fractune.models.source import model_file
from fractune_core.errors import BadModel
module, said = tvm.IRModule({}), {}
with model_file(module) as path:
    assert path.suffix == ".json"
    tvm.ir.assert_structural_equal(tvm.ir.load_json(path.read_text()), module)
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


def test_a_tvm_module_becomes_json_and_scripts_one_module_or_one_line(tmp_path: Path) -> None:
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
    assert str(refused.value) == f"{name}: {SCRIPT_REFUSED}"


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_every_command_that_takes_a_model_refuses_a_script_and_can_be_allowed_to_run_it(
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
    monkeypatch.setenv("FRACTUNE_SERVER", "127.0.0.1:1")  # no server listens there, and no request is sent
    command = [word.format(script) for word in words]
    assert (main(command), asked) == (3, [])
    assert only_line(capsys.readouterr().err) == f"fractune: net.py: {SCRIPT_REFUSED}"
    assert (main([*command, "--run-script"]), asked) == (3, [script]), capsys.readouterr().err
