"""The names of outputs, from the model's own file."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import onnx
import pytest

from fractune_workers.children.compiling.signature import _fitting, describe_constants, of_file
from tests.support.processes.cli_process import write_model

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def program(form: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The part of a torch.export program that tells its outputs."""
    mutation: dict[str, Any] = {"buffer_mutation": {"arg": {"name": "b"}, "buffer_name": "b"}}
    outputs = [mutation, *({"user_output": {"arg": {"as_tensor": {"name": name}}}} for name in names)]
    call = {"fqn": "", "signature": {"out_spec": json.dumps([1, form])}}
    return {"graph_module": {"signature": {"output_specs": outputs}, "module_call_graph": [call]}}


def archive(model: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as entries:
        entries.writestr("net/models/model.json", json.dumps(model))
    return file.getvalue()


def test_an_onnx_file_names_its_inputs_and_outputs(tmp_path: Path) -> None:
    assert of_file(write_model(tmp_path / "m.onnx").read_bytes())[0] == (["x"], ["y"])


def test_an_onnx_file_says_what_it_is(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx")
    assert of_file(model.read_bytes())[1] == {"graph_name": "small"}
    changed = onnx.load(model)
    changed.model_version = 0
    onnx.helper.set_model_props(changed, {"names": "a\nb", "half": "\0"})
    expected = {"graph_name": "small", "version": 0, "custom_metadata_map": {"names": "a\nb"}}
    assert of_file(changed.SerializeToString())[1] == expected
    onnx.helper.set_model_props(changed, {"names": "a" * 300_000})
    assert of_file(changed.SerializeToString())[1] == {}


def test_constants_have_their_numbers_and_shapes_in_the_manifest() -> None:
    assert describe_constants({"x": [1, 3]}) == {}
    assert describe_constants({"sr=const:16000": []}) == {"constants": {"sr": "16000"}}
    inputs = {"x": [1, 3], "mask": [1, 32], "mask=const:1": [], "sr=const:16000": []}
    both = {"constants": {"mask": "1", "sr": "16000"}, "constant_shapes": {"mask": [1, 32]}}
    assert describe_constants(inputs) == both


def test_a_torch_program_names_its_outputs() -> None:
    pair = {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF, LEAF]}
    assert of_file(archive(program(pair, ["add", "mul"])))[0] == ([], ["add", "mul"])


def test_a_torch_program_that_gives_a_dict_names_outputs_by_its_keys() -> None:
    both = {"type": "builtins.dict", "context": '["logits", "aux"]', "children_spec": [LEAF, LEAF]}
    assert of_file(archive(program(both, ["add", "mul"])))[0] == ([], ["logits", "aux"])
    assert of_file(archive(program(both, ["add", "mul", "relu"])))[0] == ([], ["add", "mul", "relu"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"PK\x03\x04",
        archive({}),
        archive([]),
        archive({"graph_module": None}),
        archive(program(LEAF, ["y"])["graph_module"]),
        archive({"graph_module": {"signature": {"output_specs": [{"user_output": {"arg": {"as_none": True}}}]}}}),
    ],
)
def test_a_file_without_names_that_we_know_gives_none(data: bytes) -> None:
    assert of_file(data) == (([], []), {})


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", "b\0"], ["a", "\ud800"], []])
def test_names_that_no_manifest_can_hold_leave_the_outputs_their_numbers(names: list[str]) -> None:
    assert _fitting(names, ["output0", "output1"]) == ["output0", "output1"]
    assert _fitting(["a", ""], ["output0", "output1"]) == ["a", ""]
