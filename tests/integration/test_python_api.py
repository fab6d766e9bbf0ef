"""The Python API for real, on the one-machine stack: the documented lines, any thread, Ctrl-C, a model in memory."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import descendants, events, parent_of, run_fractune, users_of, write_model
from tests.support.processes.redis_process import wait_until

HEADING = "## From Python"
_CODE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# After the documented lines, which define `result`, `model` and `outputs`. They run as a notebook's do, in a namespace.
_RUNS_LINES = """
import sys
lines = sys.stdin.read()
space = {}
exec(compile(lines, "the documentation", "exec"), space)
assert all(output.shape for output in space["outputs"])
assert space["result"].bundle.path.name == "model.fractune"
assert [row["share"] for row in space["result"].table.rows] == ["cpu:1", "cpu:2"]
assert "<td" in space["result"].table._repr_html_()
assert space["model"].choice.variant
"""

_IN_A_THREAD = """
import signal, threading
import onnx
import fractune

handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
made = {}

def work():
    with fractune.local_stack(["cpu:1"], state="state") as client:
        job = client.submit(onnx.load("model.onnx"), ["cpu:1"], trials=2, only="conv2d")
        made["states"] = [status.state.value for status in job.watch()]
        made["result"] = job.result("out/model.fractune")
        made["records"] = client.log.query(kind="trial", share="cpu:1")
        made["matches"] = client.match("model.onnx", "cpu:1").operators
        made["offered"] = client.shares()

thread = threading.Thread(target=work)
thread.start()
thread.join()
result = made["result"]
assert result.bundle.path.name == "model.fractune" and result.bundle.path.is_file()
assert made["states"][-1] == "done" and "tuning" in made["states"], made
assert result.job.progress.trials_done == {"cpu:1": 2}
inside, convolutions = result.job.results[0].inside, {each.workload_hash for each in result.job.operators}
assert inside.whole_s > 0 and {each.workload_hash for each in inside.calls} & convolutions, inside
assert len(made["records"]) == made["records"].total == 2
assert {match.how for match in made["matches"] if "conv2d" in match.operator.name} <= {"exact", "none"}
assert [(offered.granted.share, offered.measurers) for offered in made["offered"]] == [("cpu:1", 1)]
assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
"""

_TUNES_LONG = """
import fractune
fractune.tune("model.onnx", "cpu:1", trials=5000, state="state", progress=lambda s: print(s.state.value, flush=True))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "model.onnx")
    return tmp_path


def write_open_model(path: Path) -> None:
    """A convolution and a mean over an image of any size, as exporters write it."""
    weight = onnx.numpy_helper.from_array(np.full((4, 3, 3, 3), 0.1, "float32"), "w")
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["c"], strides=[8, 8]),
        onnx.helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 3, "height", "width"])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 4, 1, 1])
    graph = onnx.helper.make_graph(nodes, "open", [x], [y], [weight])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)


def environment(folder: Path) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_DATA_HOME": str(folder / "data")}


def run_python(script: str, folder: Path, lines: str = "") -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=folder,
        env=environment(folder),
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr


def first_python_block() -> str:
    """Of README.md, below its heading."""
    block = _CODE.search((REPOSITORY / "README.md").read_text(encoding="utf-8").partition(f"\n{HEADING}\n")[2])
    assert block is not None
    return block[1]


@pytest.mark.long
def test_the_documented_lines_run_as_they_stand(folder: Path) -> None:
    """In a folder with a small `model.onnx` of open sizes, and with fewer trials."""
    write_open_model(folder / "model.onnx")
    block = first_python_block()
    lines, replaced = re.subn(r"\btrials=\d+", "trials=4", block)
    assert replaced == 1
    assert len([line for line in block.splitlines() if line.strip()]) <= 6
    run_python(_RUNS_LINES, folder, lines)


@pytest.mark.long
def test_any_thread_may_tune_a_model_in_memory_and_ask_the_log(folder: Path) -> None:
    run_python(_IN_A_THREAD, folder)
    assert users_of(folder) == []


@pytest.mark.long
def test_ctrl_c_cancels_the_job_and_ends_the_stack(folder: Path) -> None:
    tuning = subprocess.Popen(
        [sys.executable, "-c", _TUNES_LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(folder),
    )
    try:
        assert tuning.stdout is not None
        assert "tuning" in (line.strip() for line in tuning.stdout)
        started = descendants(tuning.pid)
        tuning.send_signal(signal.SIGINT)
        _, said = tuning.communicate(timeout=90)
    finally:
        tuning.kill()
        tuning.communicate()
    assert tuning.returncode == -signal.SIGINT
    _, _, notes = said.rpartition("\nKeyboardInterrupt\n")
    assert notes.splitlines()[-1] == f"the log is kept in {folder / 'state'}"
    wait_until(lambda: not any(parent_of(pid) for pid in started), 30)
    assert users_of(folder / "state") == []
    (job,) = events(run_fractune("jobs", "--state", str(folder / "state"), "--json"))
    assert job["state"] == "cancelled"
