"""Models as callers have them: paths, and objects of packages that are not imported for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from fractune.errors import BadModel
from fractune.models.source import model_file
from tests.support.client_samples import bundle_bytes
from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import write_model

# In a process of its own: this one must stay without TVM's compiler.
_WRITES_AN_IR_MODULE = """
import tvm
from fractune.models.source import model_file
module = tvm.IRModule({})
with model_file(module) as path:
    assert path.suffix == ".json"
    tvm.ir.assert_structural_equal(tvm.ir.load_json(path.read_text()), module)
"""


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_taken_as_it_is(tmp_path: Path, kind: type) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"a model")
    with model_file(kind(path)) as found:
        assert found == path


def test_an_onnx_model_becomes_a_file_while_it_is_needed(tmp_path: Path) -> None:
    model = onnx.load(write_model(tmp_path / "m.onnx"))
    with model_file(model) as path:
        assert path.name == "model.onnx"
        assert onnx.load(path) == model
    assert not path.parent.exists()


def test_a_tvm_module_becomes_json() -> None:
    subprocess.run([sys.executable, "-c", _WRITES_AN_IR_MODULE], check=True, cwd=REPOSITORY)


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
