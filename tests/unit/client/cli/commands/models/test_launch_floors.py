"""Times near the launch floor of a share have a mark in the tables, a note below them, and a field in `--json`.

The scripted job's model has two operators that run four times in one inference. Its shares stand for those of a GPU.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from fractune.cli import main
from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.scripted_server import ScriptedServer
from tests.support.samples import validation

NOTE = (
    "* at most 1.5 times the launch floor of its share, the time of an empty kernel: the host's launches are timed, so "
    "shares tie; a larger batch shows the kernels."
)


@pytest.fixture
def near_floor(server: ScriptedServer) -> ScriptedServer:
    """A server whose job is launch-bound: the model's fastest time at `cpu:2`, and its operator at `cpu:1`."""
    for job in server.script:
        job.roofs["cpu:1"].CopyFrom(pb.Roof(launch_s=1.5e-3))
        job.roofs["cpu:2"].CopyFrom(pb.Roof(launch_s=0.19e-3))
    for share in server.script[-1].result.shares:
        if share.share == "cpu:1":
            share.untuned_s, share.tuned_s = 40e-3, 20e-3
            for repeats in share.run_secs.values():
                repeats.secs[:] = [10 * secs for secs in repeats.secs]
    record = to_proto(validation("a", 1, 1.6e-3, record_id="a" * 32), pb.Record)
    cells = [pb.TableCell(tuned_at=share, run_at=share, record=record) for share in ("cpu:1", "cpu:2")]
    operator = pb.Operator(display_name="fused_conv2d", weight=3, workload_hash="0123")
    server.tables = [pb.OperatorTable(operator=operator, cells=cells)]
    return server


def run(server: ScriptedServer, model: Path, command: str, *options: str) -> None:
    assert main([command, str(model), "--shares", "cpu:1,cpu:2", "--server", server.address, *options]) == 0


def lines_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The output, its lines joined."""
    return " ".join(capsys.readouterr().out.split())


def test_the_closing_tables_of_tune_mark_the_model_and_its_operators(
    near_floor: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(near_floor, model, "tune", "--out-dir", str(model.parent), "--verbose")
    said = lines_of(capsys)
    assert said.count(NOTE) == 1, "below the answer, and not below the details again"
    latency, _, rest = said.partition("tuned at x run at")
    assert "20.0 ms │" in latency
    assert "1.00 ms * │" in latency
    cross, _, operators = rest.partition("where the time goes")
    assert "1.00 ms * fastest" in cross
    assert "1.20 ms 1.20x, 3 timings" in cross
    assert "6.00 ms * │" in operators
    assert "3.00 ms │" in operators


def test_json_of_tune_has_the_floors_and_what_is_bound_by_them(
    near_floor: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(near_floor, model, "tune", "--out-dir", str(model.parent), "--json")
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    told = [(each["roof"], each["launch_s"], each["launch_bound"]) for each in result["shares"]]
    assert told == [(None, 1.5e-3, False), (None, 0.19e-3, True)]
    assert result["operators"][0]["launch_bound"] == {"cpu:1": True, "cpu:2": False}


def test_matrix_marks_cells_of_the_model_and_of_operators(
    near_floor: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written = tmp_path / "cells.csv"
    run(near_floor, model, "matrix", "--operators", "--csv", str(written))
    said = lines_of(capsys)
    assert said.count(NOTE) == 1
    assert "1.00 ms * fastest" in said
    assert "1.60 ms * fastest" in said
    rows = list(csv.DictReader(written.read_text().splitlines()))
    told = {(row["subject"], row["tuned_at"], row["run_at"]): row["launch_bound"] for row in rows}
    assert told["m.onnx", "cpu:1", "cpu:2"] == told["fused_conv2d", "cpu:1", "cpu:1"] == "True"
    assert told["m.onnx", "cpu:2", "cpu:2"] == told["fused_conv2d", "cpu:2", "cpu:2"] == "False"


def test_json_of_matrix_has_the_launches_of_an_inference(
    near_floor: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(near_floor, model, "matrix", "--operators", "--json")
    whole, operator = json.loads(capsys.readouterr().out.splitlines()[-1])["tables"]
    assert whole["launches_s"] == pytest.approx({"cpu:1": 6e-3, "cpu:2": 0.76e-3})
    assert operator["launches_s"] == {"cpu:1": 1.5e-3, "cpu:2": 0.19e-3}
    bound = {(cell["tuned_at"], cell["run_at"]) for cell in whole["cells"] if cell["launch_bound"]}
    assert bound == {("cpu:1", "cpu:2")}


def test_knee_marks_the_times_of_its_curve(
    near_floor: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(near_floor, model, "knee", "--operators")
    said = lines_of(capsys)
    assert said.count(NOTE) == 1
    assert "│ m.onnx │ 20.0 ms │ 1.00 ms * │" in said
    assert "│ 1.60 ms * │ 1.60 ms │" in said
    run(near_floor, model, "knee", "--operators", "--json")
    curves = json.loads(capsys.readouterr().out.splitlines()[-1])["curves"]
    assert [[each["launch_bound"] for each in curve["measured"]] for curve in curves] == [[False, True], [True, False]]


@pytest.mark.parametrize("command", ["tune", "matrix", "knee"])
def test_a_cpu_has_no_launch_floor_and_no_mark(
    command: str, server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out-dir", str(model.parent), "--force") if command == "tune" else ()
    run(server, model, command, *out)
    assert " * " not in lines_of(capsys)
    run(server, model, command, *out, "--json")
    event = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(_bound(event)) == {None}


def _bound(value: Any) -> list[bool | None]:
    """The values of all fields `launch_bound`, at any depth."""
    if isinstance(value, list):
        return [bound for each in value for bound in _bound(each)]
    if not isinstance(value, dict):
        return []
    found = value.get("launch_bound", [])
    own = list(found.values()) if isinstance(found, dict) else [found] if not isinstance(found, list) else []
    return own + [bound for name, each in value.items() if name != "launch_bound" for bound in _bound(each)]


def test_a_mark_in_the_table_of_an_operator_alone_is_explained_too(
    near_floor: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    near_floor.script[-1].roofs["cpu:2"].launch_s = 1e-6
    run(near_floor, model, "matrix")
    assert NOTE not in lines_of(capsys)
    run(near_floor, model, "matrix", "--operators")
    assert lines_of(capsys).count(NOTE) == 1
