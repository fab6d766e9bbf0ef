"""Open sizes on the command line: shown by `inspect`, asked for by `tune` on a terminal, refused elsewhere."""

import io
import json
import shlex
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from fractune.cli import main
from fractune.errors import BadModel
from tests.support.processes.scripted_server import ScriptedServer

pytestmark = pytest.mark.usefixtures("examined_here")

LINE = "fractune: input 'ids' has open sizes ([batch, sequence]); fix them, such as with --size batch=1 --size "
TUNE = ["--shares", "cpu:1,cpu:2", "--detach"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return saved(tmp_path / "encoder.onnx", {"ids": ["batch", "sequence"], "mask": ["batch", "sequence"]})


def saved(path: Path, inputs: dict[str, list[int | str | None]]) -> Path:
    kinds = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in inputs.items()]
    graph = helper.make_graph(
        [helper.make_node("Identity", [next(iter(inputs))], ["y"])],
        "g",
        kinds,
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def at_terminal(monkeypatch: pytest.MonkeyPatch, answers: str) -> Terminal:
    """The screen; the keyboard has these answers."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answers))
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


@pytest.mark.usefixtures("apart")
def test_inspect_prints_a_table_and_a_command_that_works(
    encoder: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(encoder)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "a guess for a sequence" in out
    command = shlex.split(out.splitlines()[-1])
    assert command[0] == "fractune"
    assert main([*command[1:], "--detach", "--server", server.address]) == 0
    assert {name: list(shape.dims) for name, shape in server.specs[0].inputs.items()} == {
        "ids": [1, 128],
        "mask": [1, 128],
    }


def test_inspect_as_json_and_with_given_sizes(encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(encoder), "--input", "ids=2,64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["suggested"] == {"mask": [2, 64]}
    assert [axis["name"] for axis in found["inputs"][0]["axes"]] == ["batch", "sequence"]
    assert found["command"] == f"fractune tune {encoder} --input ids=2,64 --shares cpu:1"
    assert main(["inspect", str(encoder), "--size", "sequence=64"]) == 0
    copied = f"fractune tune {encoder} --size sequence=64 --size batch=1 --shares cpu:1"
    assert capsys.readouterr().out.splitlines()[-1] == copied


@pytest.mark.parametrize("command", ["tune --detach", "tune", "bundle", "matrix", "knee", "match"])
def test_without_a_terminal_nothing_is_queued_and_the_whole_command_is_printed(
    encoder: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    name, *words = command.split()
    shares = ["--share", "cpu:1"] if name == "match" else ["--shares", "cpu:1,cpu:2"]
    args = [name, str(encoder), *shares, *words, "--server", server.address]
    assert main(args) == BadModel.exit_code
    out, err = capsys.readouterr()
    assert out == ""
    *table, copied, line = err.splitlines()
    assert "a guess for a sequence" in "\n".join(table)
    assert copied == shlex.join(["fractune", *args, "--size", "batch=1", "--size", "sequence=128"])
    assert line.startswith(LINE)
    assert (server.specs, server.uploads) == ([], 0)


def test_a_terminal_is_asked_once_for_each_size(
    encoder: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answers, size in (("\n", 128), ("none\n0\n64\n", 64)):
        screen = at_terminal(monkeypatch, answers)
        assert main(["tune", str(encoder), *TUNE, "--server", server.address]) == 0
        asked = screen.getvalue()
        assert asked.count("size of sequence [128]: ") == answers.count("\n")
        assert asked.count("size of ") == asked.count("size of sequence")
        assert [list(server.specs[-1].inputs[name].dims) for name in ("ids", "mask")] == [[1, size], [1, size]]
    at_terminal(monkeypatch, "")
    assert main(["tune", str(encoder), *TUNE, "--server", server.address]) == BadModel.exit_code
    assert len(server.specs) == 2


def test_an_open_batch_alone_is_1_with_one_line(
    tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "m.onnx", {"x": ["batch", 8], "z": [None, 4]})
    assert main(["tune", str(path), *TUNE, "--server", server.address]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err == "the open batch of 'x', 'z' is 1; --size fixes another size\n"
    assert {name: list(shape.dims) for name, shape in server.specs[0].inputs.items()} == {"x": [1, 8], "z": [1, 4]}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "idz=1,16",
            "--input: no input is named 'idz'; the inputs are 'ids' [batch, sequence], 'mask' [batch, sequence]",
        ),
        ("idz=const:1", "--input: no input is named 'idz'"),
        ("ids=16", "--input: 'ids' gets 1 axes (16), and has 2 in the model ([batch, sequence]); give 2 sizes"),
        ("ids=1,0", "every size must be at least 1"),
    ],
)
def test_wrong_inputs_are_refused_here_also_in_the_second_model_of_a_job(
    encoder: Path, tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str], given: str, says: str
) -> None:
    assert main(["tune", str(encoder), *TUNE, "--input", given, "--server", server.address]) in (2, 3)
    assert says in capsys.readouterr().err
    saved(tmp_path / "fixed.onnx", {"x": [2, 2]})
    job = tmp_path / "job.toml"
    job.write_text(
        f"shares = 'cpu:1'\ndetach = true\n[[models]]\nfile = 'fixed.onnx'\n"
        f"[[models]]\nfile = 'encoder.onnx'\ninput = ['{given}']\n"
    )
    assert main(["tune", "--job", str(job), "--server", server.address]) in (2, 3)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"fractune: {job}: ")
    assert says in line
    assert (server.specs, server.uploads) == ([], 0)


def test_open_sizes_of_the_second_model_of_a_job_are_named_before_the_first_begins(
    encoder: Path, tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "fixed.onnx", {"x": [2, 2]})
    job = tmp_path / "job.toml"
    models = "".join(f"[[models]]\nfile = '{name}'\n" for name in ("fixed.onnx", encoder.name))
    job.write_text(f"shares = 'cpu:1'\ndetach = true\n{models}")
    assert main(["tune", "--job", str(job), "--server", server.address]) == BadModel.exit_code
    assert "has open sizes" in capsys.readouterr().err
    job.write_text(f"shares = 'cpu:1'\ndetach = true\n{models}lengths = ['ids:1=16']\n")
    assert main(["tune", "--job", str(job), "--server", server.address]) == 0
    assert len(server.specs) == 2
    printed = capsys.readouterr()
    assert "the bundle runs this size alone" in printed.err
    assert printed.out.split() == ["jobs/j1", "jobs/j1"]
