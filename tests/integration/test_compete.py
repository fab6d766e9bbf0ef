"""A bundle beside the runtimes that are installed, in a confined process, and what it holds afterwards."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import fractune
from fractune_core.files.bundles import Bundle
from tests.support.processes.cli_process import error_line, run_fractune
from tests.support.real_bundle import compile_small

pytestmark = [pytest.mark.alone, pytest.mark.long]


def test_installed_runtimes_compete_and_the_bundle_holds_the_times(tmp_path: Path) -> None:
    model, bundle = compile_small(tmp_path)
    named = [each for each in ("onnxruntime", "openvino") if importlib.util.find_spec(each)]
    ended = run_fractune("compete", str(bundle), "--model", str(model), "--shares", "cpu:1", "--repeats", "6", "--json")
    said = json.loads(ended.stdout.splitlines()[-1])
    assert (said["event"], said["share"], said["shape"]) == ("compared", "cpu:1", None)
    assert {*said["times"], *said["refused"]} == {"fractune", *named}
    assert said["times"]["fractune"]["loop_s"] > 0
    low, high = said["times"]["onnxruntime"]["loop"][1:]
    assert low <= said["times"]["onnxruntime"]["loop"][0] <= high
    Bundle(bundle).verify()
    loaded = fractune.load(bundle, share="cpu:1")
    served_by_another = said["serves"]["latency"] != "fractune"
    assert (loaded.choice.variant == said["serves"]["latency"]) == served_by_another
    assert loaded.run(loaded.random_inputs())
    shown = run_fractune("match", str(bundle)).stdout
    assert "beside other runtimes" in shown
    refused = run_fractune("compete", str(bundle), "--model", str(model), "--runtimes", "other")
    assert (refused.returncode, "'other' is no runtime" in error_line(refused)) == (2, True)
