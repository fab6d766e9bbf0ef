"""A model with an operator that cannot be imported, through the command line: cut, tuned, timed and run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fractune
from tests.support.onnx_models import run_by_onnxruntime
from tests.support.parts import write_middle
from tests.support.processes.cli_process import error_line, events, run_fractune

pytestmark = [pytest.mark.alone, pytest.mark.long]


def test_what_can_be_imported_is_tuned_and_onnx_runtime_runs_the_rest(tmp_path: Path) -> None:
    model, bundle = write_middle(tmp_path / "middle.onnx", ["n", 4]), tmp_path / "middle.fractune"
    command = (
        *("tune", str(model), "--input", "x=2,4", "--shares", "cpu:1", "--trials", "0"),
        *("--state", str(tmp_path / "state"), "--out", str(bundle)),
    )
    refused = run_fractune(*command, "--compete", "none")
    assert refused.returncode == 3
    assert "cannot import node 'cdist' (com.microsoft.CDist)" in error_line(refused)
    assert "or leave out --compete none: then ONNX Runtime runs this node" in error_line(refused)
    several = run_fractune(*command[:2], *command[4:], "--lengths", "x:0=2,3")
    assert (several.returncode, "or give one shape: then the model is tuned in parts" in error_line(several)) == (
        3,
        True,
    )
    only = run_fractune("bundle", *command[1:6], *command[8:])
    assert (only.returncode, "or 'fractune tune' the model: it makes a bundle in parts" in error_line(only)) == (
        3,
        True,
    )
    assert not bundle.exists()
    said = events(run_fractune(*command, "--json"))
    results = [each for each in said if each["event"] == "result"]
    assert [each["shares"][0]["share"] for each in results] == ["cpu:1", "cpu:1"]
    parts = next(each for each in said if each["event"] == "parts")
    assert [step["member"] for step in parts["steps"]] == [0, None, 1]
    (compared,) = [each for each in said if each["event"] == "compared"]
    assert set(compared["times"]) == {"fractune", "onnxruntime"}
    assert " of ONNX Runtime's time at cpu:1" in parts["answer"]
    for runtimes in (True, False):
        loaded = fractune.load(bundle, share="cpu:1", runtimes=runtimes)
        inputs = loaded.random_inputs(3)
        np.testing.assert_allclose(loaded.run(inputs)[0], run_by_onnxruntime(model, inputs)[0], rtol=1e-5)
    shown = run_fractune("run", str(bundle), "--share", "cpu:1")
    assert "speed-up" in shown.stdout
