"""Models in parts, of several shapes and of several variants, through the command line and the Python API."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fractune
from benchmarks.support.reference import expected_outputs
from tests.support.encoders import inputs_of, write_encoder
from tests.support.onnx_models import run_by_onnxruntime
from tests.support.parts import write_middle
from tests.support.processes.cli_process import error_line, events, run_fractune, write_model

pytestmark = pytest.mark.long


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


GATE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fused")


def variants(folder: Path, *seeds: int) -> list[Path]:
    return [write_model(folder / f"v{seed}.onnx", seed=seed) for seed in seeds]


def tuned(folder: Path, name: str, *seeds: int) -> Any:
    model = fractune.fuse(variants(folder, *seeds), slots=3, out=folder / f"{name}.fused")
    out, state = folder / f"{name}.fractune", folder / "state"
    return fractune.tune(model, "cpu:1", trials=8, out=out, state=state, progress=False)


@pytest.fixture(scope="module")
def first(folder: Path) -> Any:
    return tuned(folder, "first", 1, 2)


def request() -> dict[str, Any]:
    return {"x": np.random.default_rng(9).standard_normal((1, 4, 16, 16)).astype("float32")}


def test_a_tuned_slot_gives_what_its_variant_does(folder: Path, first: Any) -> None:
    model = first.bundle.load(share="cpu:1")
    assert model.slots == ("v1", "v2", None)
    assert model.choice.variant == "cpu:1"
    for slot, path in enumerate(variants(folder, 1, 2)):
        (expected,) = expected_outputs(path, request())
        (found,) = model.run(request(), slot=slot)
        assert np.abs(found - expected).max() < GATE * np.abs(expected).max()


def test_other_variants_are_tuned_already_and_change_their_slot_alone(folder: Path, first: Any) -> None:
    second = tuned(folder, "second", 1, 3)
    assert sum(second.job.progress.trials_done.values()) == 0
    before, after = (each.bundle.load(share="cpu:1") for each in (first, second))
    outputs = [model.run_slots({0: request(), 1: request()}) for model in (before, after)]
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])
    assert np.abs(outputs[0][1][0] - outputs[1][1][0]).max() > GATE
