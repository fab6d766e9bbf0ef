"""Jobs on a real stack whose importer reads one operator wrongly: nothing wrong is published, or serves."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fractune_core.files.bundles import Bundle
from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import error_line, run_fractune
from tests.support.real_bundle import compile_model

pytestmark = pytest.mark.long

WRONG = {"PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests/support/wrong_converter")))}
FIRST = "the first node that computes something else is node 'sign' (Neg)"


def write_network(path: Path, *, wrong: bool = False) -> Path:
    """A product, a `Neg` and a softmax; `wrong` as the importer of these tests reads it."""
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Identity" if wrong else "Neg", ["p"], ["n"], name="sign"),
        helper.make_node("Softmax", ["n"], ["y"], name="last"),
    ]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 16]) for name in "xy")
    graph = helper.make_graph(nodes, "network", [x], [y], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_wrong_bundle_fails_its_job_and_is_not_published(tmp_path: Path) -> None:
    model, state = write_network(tmp_path / "network.onnx"), tmp_path / "state"
    np.savez(tmp_path / "own.npz", x=np.ones((4, 16), np.float32))
    command = ["tune", str(model), "--shares", "cpu:1", "--trials", "0", "--out-dir", str(tmp_path)]
    command += ["--check-inputs", str(tmp_path / "own.npz"), "--compete", "none", "--state"]
    wrong = run_fractune(*command, str(state), "--quiet", env=WRONG)
    assert wrong.returncode == 12, wrong.stderr
    assert FIRST in error_line(wrong)
    assert not list(tmp_path.glob("*.fractune"))
    assert not list(state.rglob("*.fractune"))
    # The operators are those of the wrong model, which the server has kept; another state has the right ones.
    right = run_fractune(*command, str(tmp_path / "other"), "--json")
    assert right.returncode == 0, right.stderr
    result = json.loads(right.stdout.splitlines()[-1])
    assert list(result["checked"][0]["sets"])[:2] == ["the given inputs", "random"]
    notes = [note for line in right.stdout.splitlines() for note in json.loads(line).get("notes", ())]
    assert any(note.startswith("outputs equal ONNX Runtime ") for note in notes)


def test_compete_never_lets_a_wrong_bundle_serve(tmp_path: Path) -> None:
    """The bundle of the wrong model, under the name of the right one."""
    model, read_as = write_network(tmp_path / "network.onnx"), write_network(tmp_path / "wrong.onnx", wrong=True)
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    bundle = tmp_path / "b.fractune"
    with bundle.open("wb") as file:
        made = Bundle(compile_model(read_as, tmp_path / "made.fractune"))
        made.copy_to(file, model={"name": model.name, "sha256": digest})
        made.close()
    before = bundle.read_bytes()
    ended = run_fractune("compete", str(bundle), "--model", str(model), "--runtimes", "onnxruntime", env=WRONG)
    assert ended.returncode == 12, ended.stderr
    assert FIRST in ended.stderr.splitlines()[-1]
    assert bundle.read_bytes() == before
