"""Shapes that contradict the model's file are refused before a job is queued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import fractune
from fractune.cli import main
from fractune.errors import BadModel
from fractune.models.source import model_file
from tests.support.processes.scripted_server import ScriptedServer


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


COMMANDS = {
    "tune": ["--shares", "cpu:1"],
    "tune --detach": ["--shares", "cpu:1", "--detach"],
    "bundle": ["--shares", "cpu:1"],
    "matrix": ["--shares", "cpu:1,cpu:2"],
    "knee": ["--shares", "cpu:1,cpu:2"],
    "match": ["--share", "cpu:1"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_job_is_queued_for_it(
    tmp_path: Path, server: ScriptedServer, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = encoder(tmp_path / "m.onnx")
    given = [command.partition(" ")[0], str(path), *COMMANDS[command], "--input", "x=1,9", "--server", server.address]
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
