"""A model is tuned for two lengths through the command line, and its bundle runs every length up to the longer one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fractune
from tests.support.encoders import inputs_of, write_encoder
from tests.support.onnx_models import run_by_onnxruntime
from tests.support.processes.cli_process import error_line, events, run_fractune

pytestmark = [pytest.mark.alone, pytest.mark.long]


# A model of some 50 us may run fastest as it is.
@pytest.mark.filterwarnings("ignore:.*runs its untuned variant:RuntimeWarning")
def test_two_lengths_are_tuned_and_every_length_runs(tmp_path: Path) -> None:
    model, bundle = write_encoder(tmp_path / "encoder.onnx"), tmp_path / "encoder.fractune"
    command = (
        *("tune", str(model), "--lengths", "ids:1=8,16", "--shares", "cpu:1", "--trials", "0"),
        *("--state", str(tmp_path / "state"), "--out", str(bundle), "--json"),
    )
    said = events(run_fractune(*command))
    steps = [each["text"] for each in said if each["event"] == "step"]
    assert steps[0].startswith("the open batch of 'ids', 'mask' is 1")
    assert steps[1:3] == ["shape 1 of 2: ids 1x16, mask 1x16", "shape 2 of 2: ids 1x8, mask 1x8"]
    assert [each["shares"][0]["share"] for each in said if each["event"] == "result"] == ["cpu:1"] * 2
    joined = said[-1]
    assert (joined["event"], joined["padding"]["proved"], len(joined["buckets"])) == ("joined", True, 2)
    loaded = fractune.load(bundle)
    for length in (1, 8, 11, 16):
        inputs = inputs_of(length)
        for output, wanted in zip(loaded.run(inputs), run_by_onnxruntime(model, inputs), strict=True):
            np.testing.assert_allclose(output, wanted, atol=1e-4)
    assert {each["shape"] for each in said if each["event"] == "compared"} >= {
        "ids 1x8, mask 1x8",
        "ids 1x16, mask 1x16",
    }
    assert re.match(r"\d\.\d\d \(.*\) of ONNX Runtime's time at cpu:1.* \(ids 1x16, mask 1x16\)", joined["answer"])
    again = [
        each for each in events(run_fractune(*command, "--compete", "none", "--force")) if each["event"] == "result"
    ]
    assert [each["trials"] for each in again] == [{"cpu:1": 0}] * 2
    shown = run_fractune("match", str(bundle))
    assert "ids 1x16, mask 1x16" in shown.stdout
    assert "padding:   proved" in shown.stdout
    refused = run_fractune(*command, "--until-beats", "onnxruntime")
    assert (refused.returncode, "it compares one shape" in error_line(refused)) == (2, True)
