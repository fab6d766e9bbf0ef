"""A bundle beside the runtimes that are installed, in a confined process, and what it holds afterwards."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import fractune
from fractune import BucketedModel
from fractune_core.files.bundles import Bundle
from tests.support.encoders import inputs_of, write_encoder
from tests.support.onnx_models import run_by_onnxruntime
from tests.support.processes.cli_process import error_line, run_fractune
from tests.support.real_bundle import compile_model, compile_small

pytestmark = pytest.mark.long


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


@pytest.mark.parametrize("mean_of_all", [False, True])
def test_any_length_runs_by_what_was_faster_or_by_what_may_run_it(tmp_path: Path, *, mean_of_all: bool) -> None:
    model = write_encoder(tmp_path / "encoder.onnx", mean_of_all=mean_of_all)
    files = [
        compile_model(model, tmp_path / f"{length}.fractune", tuned=["cpu:1"], inputs={"ids": shape, "mask": shape})
        for length in (4, 16)
        for shape in [[1, length]]
    ]
    path = fractune.join(files, out=tmp_path / "joined.fractune").path
    contests = fractune.compete(path, model, runtimes="onnxruntime", shares="cpu:1", repeats=6, progress=False).contests
    Bundle(path).verify()
    assert [each.shape for each in contests if not each.shape.startswith("up to")] == [
        "ids 1x4, mask 1x4",
        "ids 1x16, mask 1x16",
    ]
    between = [each for each in contests if each.shape.startswith("up to")]
    assert len(between) == (0 if mean_of_all else 2)
    loaded = fractune.load(path, share="cpu:1")
    assert isinstance(loaded, BucketedModel)
    for length in range(1, 17):
        inputs = inputs_of(length)
        for output, wanted in zip(loaded.run(inputs), run_by_onnxruntime(model, inputs), strict=True):
            np.testing.assert_allclose(output, wanted, atol=1e-4)
