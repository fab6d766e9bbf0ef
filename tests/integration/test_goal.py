"""A goal in place of trials, for real: ONNX Runtime and bundles timed in turn on the cores of this machine."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fractune
from tests.support.processes.cli_process import error_line, events, run_fractune, users_of, write_model

pytestmark = pytest.mark.alone
NOT_BEATEN = 10
"""the exit code"""


def write_chain(path: Path, length: int = 100) -> Path:
    """Many cheap operators, which TVM makes one kernel of, and ONNX Runtime runs one by one: some ten times as long."""
    nodes, weights, last = [], [], "x"
    for number in range(length):
        weight = np.full((1,), 0.5 + number / length, "float32")
        weights.append(onnx.numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(onnx.helper.make_node("Add", [last, f"w{number}"], [f"a{number}"]))
        last = "y" if number == length - 1 else f"s{number}"
        nodes.append(onnx.helper.make_node("Abs", [f"a{number}"], [last]))
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8]) for name in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def goal_options(folder: Path, *more: str, share: str = "cpu:1") -> list[str]:
    where = ["--state", str(folder / "state"), "--out-dir", str(folder), "--json"]
    return ["--shares", share, "--until-beats", "onnxruntime", *where, *more]


@pytest.mark.long
def test_it_ends_when_the_peer_is_beaten(tmp_path: Path) -> None:
    told = events(tune_until_beaten(tmp_path))
    goals = [event for event in told if event["event"] == "goal"]
    assert goals[0]["peer_s"]["cpu:1"] > 0
    assert (goals[0]["steps"], goals[0]["end"]) == ([], None)
    goal = told[-1]["goal"]
    # The first candidate of the one operator.
    assert (goal["beaten"], goal["end"], goal["trials"]) == (True, "beaten", 1)
    (share,) = goal["shares"]
    assert share["ratio_low"] <= share["ratio"] <= share["ratio_high"] < 1
    assert share["parity_s"] == goal["tuning_s"] > 0
    assert share["outputs_agree"]
    assert Path(told[-1]["bundle"]).is_file()
    assert_is_in_the_log(Path(told[-1]["bundle"]).parent / "state", share)


def assert_is_in_the_log(state: Path, share: Mapping[str, Any]) -> None:
    """For the chart of the job: the peer's last time, beside that of the bundle."""
    with fractune.local_stack(state=state) as client:
        timed = client.runtime_times()[0]
    assert (timed.runtime, timed.share, timed.inputs) == ("onnxruntime", "cpu:1", {"x": [1, 8]})
    assert (timed.loop_s, timed.bundle_loop_s) == (share["peer_s"], share["our_s"])
    assert timed.loop_ratio.high == share["ratio_high"]


def tune_until_beaten(folder: Path) -> subprocess.CompletedProcess[str]:
    """Whoever else is busy on the machine makes intervals wide: up to three times, each anew."""
    for number in range(3):
        own = folder / str(number)
        own.mkdir()
        model = write_chain(own / "chain.onnx")
        ended = run_fractune("tune", str(model), *goal_options(own, "--trials", "0"))
        if ended.returncode != NOT_BEATEN:
            break
    return ended


@pytest.mark.long
def test_what_is_not_reached_is_an_exit_code_and_the_log_goes_on_from_there(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx")
    options = goal_options(tmp_path, "--min-gain", "99%", "--only", "conv2d")
    ended = run_fractune("tune", str(model), *options, "--trials", "6")
    assert (ended.returncode, ended.stderr) == (NOT_BEATEN, "")
    ended.returncode = 0
    told = events(ended)
    (result,) = [each for each in told if each["event"] == "result"]
    assert [{*each["times"]} for each in told if each["event"] == "compared"] == [{"fractune", "onnxruntime"}]
    goal = result["goal"]
    assert (goal["beaten"], goal["end"], goal["by"], goal["trials"]) == (False, "trials", 0.99, 6)
    assert [step["trials"] for step in goal["steps"]] == [2, 6]
    assert 0 < goal["steps"][0]["tuning_s"] < goal["steps"][1]["tuning_s"]
    assert Path(result["bundle"]).is_file()
    options = [each for each in options if each != "--json"]
    again = run_fractune("tune", str(model), *options, "--trials", "0", "--compete", "none")
    assert again.returncode == NOT_BEATEN
    assert " of ONNX Runtime's time at cpu:1" in again.stdout
    assert again.stdout.count("ONNX Runtime ┃") == 1, "the comparison is printed once"
    assert "is not beaten at every share: the trials are made, after 0 trials and" in again.stdout


def test_what_onnx_runtime_cannot_do_starts_no_job(tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.onnx"
    rubbish.write_bytes(b"no model")
    text = tmp_path / "module.json"
    text.write_text("{}")
    open_shape = onnx.load(write_model(tmp_path / "m.onnx"))
    open_shape.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(open_shape, tmp_path / "open.onnx")
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "onnxruntime.py").write_text("raise ImportError('none here')")
    for name, env, code, says in (
        ("rubbish.onnx", None, 3, "rubbish.onnx: ONNX Runtime cannot load it"),
        ("module.json", None, 3, "module.json: ONNX Runtime cannot load it"),
        ("open.onnx", None, 3, "input 'x' has open sizes ([1, 4, height, 16]); fix them, such as with --size height="),
        ("m.onnx", {"PYTHONPATH": str(missing)}, 1, "cannot be imported (none here); install it again"),
    ):
        ended = run_fractune("tune", str(tmp_path / name), *goal_options(tmp_path), "--quiet", env=env)
        assert ended.returncode == code
        assert says in error_line(ended)
        assert ended.stdout == ""
    assert not (tmp_path / "state").exists()
    assert users_of(tmp_path) == []
