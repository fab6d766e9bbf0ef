"""A fused model that was compiled for real, served by slot: each slot for itself, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fractune
from fractune import Model
from fractune.cli import main
from fractune_core.errors import BadRequest
from tests.support.real_bundle import FusedVariants, Small
from tests.unit.runtime.test_model import truth

SHAPE = (1, 4, 16, 16)


@pytest.fixture
def model(fused: FusedVariants) -> Model:
    return fractune.load(fused.bundle)


def image(seed: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).standard_normal(SHAPE).astype("float32")}


@pytest.mark.parametrize("slot", [0, 1])
def test_a_slot_gives_what_its_variant_gives(fused: FusedVariants, model: Model, slot: int) -> None:
    for variant in (None, "cpu:1", "cpu:2", "untuned"):
        (output,) = model.run(image(3), variant, slot=slot)
        np.testing.assert_allclose(output, truth(fused.models[slot], image(3)), rtol=1e-4)
    assert output.flags.owndata


def test_a_batch_over_slots_gives_each_its_own(fused: FusedVariants, model: Model) -> None:
    outputs = model.run_slots({1: image(5), 0: image(4)})
    assert list(outputs) == [1, 0]
    for slot, (output,) in outputs.items():
        np.testing.assert_allclose(output, truth(fused.models[slot], image(4 + slot)), rtol=1e-4)


def test_a_request_of_another_slot_changes_nothing(model: Model) -> None:
    (alone,) = model.run(image(4), slot=0)
    np.testing.assert_array_equal(model.run_slots({0: image(4), 1: image(5)})[0][0], alone)


def test_all_slots_at_once_are_stacked(fused: FusedVariants, model: Model) -> None:
    assert [str(spec) for spec in (*model.inputs, *model.outputs)] == [
        "x float32[3, 1, 4, 16, 16]",
        "y float32[3, 1, 10]",
    ]
    (output,) = model.run({"x": np.stack([image(seed)["x"] for seed in (1, 2, 3)])})
    for slot, path in enumerate(fused.models):
        np.testing.assert_allclose(output[slot], truth(path, image(1 + slot)), rtol=1e-4)


def test_occupancy_is_the_part_of_the_computed_slots_that_served(model: Model) -> None:
    assert model.slots == ("variant1", "variant2", None)
    assert model.occupancy == 0
    model.run(image(1), slot=1)
    assert model.occupancy == pytest.approx(1 / 3)
    model.run_slots({0: image(1), 1: image(1)})
    assert model.occupancy == pytest.approx(1 / 2)


def test_slots_that_there_are_not_are_refused(model: Model, small: Small) -> None:
    for slot in (3, -1, "variant1"):
        with pytest.raises(BadRequest, match=rf"^slot {slot!r}: variants.fractune has the slots 0 to 2$"):
            model.run_slots({slot: image(1)})  # type: ignore[dict-item]
    with pytest.raises(BadRequest, match=r"slot 2 of variants.fractune is empty; it has 0 \(variant1\), 1 \(variant2"):
        model.run(image(1), slot=2)
    with pytest.raises(BadRequest, match="no slot is requested"):
        model.run_slots({})
    with pytest.raises(BadRequest, match=r"small.fractune is not a fused model"):
        fractune.load(small.bundle).run(image(1), slot=0)
    assert fractune.load(small.bundle).slots == ()
    assert model.occupancy == 0, "what was refused does not count"


def test_wrong_inputs_of_a_slot_are_told_what_one_slot_takes(model: Model) -> None:
    with pytest.raises(BadRequest, match=r"takes x float32\[1, 4, 16, 16\]; given: x float32\[3, 1, 4, 16, 16\]"):
        model.run(model.random_inputs(), slot=0)
    with pytest.raises(BadRequest, match="given: nothing"):
        model.run({}, slot=0)


def test_dlpack_goes_into_a_slot(model: Model) -> None:
    import tvm_ffi

    x = image(2)["x"]
    (expected,), (found,) = (model.run({"x": each}, slot=0) for each in (x, tvm_ffi.from_dlpack(x.copy())))
    np.testing.assert_array_equal(found, expected)


def test_run_shows_slots_and_runs_one(fused: FusedVariants, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "in.npz", **image(6))
    files = ["--inputs", str(tmp_path / "in.npz"), "--save-outputs", str(tmp_path / "out.npz")]
    assert main(["run", str(fused.bundle), "--slot", "1", "--repeats", "3", *files]) == 0
    shown = capsys.readouterr().out
    assert "slots:     2 of 3 filled: 0 variant1, 1 variant2, 2 empty; a run computes all 3" in shown
    assert "only slot 1 was requested, of 3 that each run computes" in shown
    with np.load(tmp_path / "out.npz") as saved:
        np.testing.assert_allclose(saved["y"], truth(fused.models[1], image(6)), rtol=1e-4)
    assert main(["run", str(fused.bundle), "--repeats", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["slots"], report["apart"], report["slot"]) == (["variant1", "variant2", None], [], None)
    assert report["outputs"] == [{"name": "y", "dtype": "float32", "shape": [3, 1, 10]}]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--slot", "7"], "slot 7: variants.fractune has the slots 0 to 2"),
        (["--slot", "2"], "slot 2 of variants.fractune is empty"),
        (["--compare", "onnxruntime", "--model", "any.onnx"], "--compare takes one model, and variants.fractune holds"),
    ],
)
def test_run_refuses_in_one_line(
    fused: FusedVariants, options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(fused.bundle), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
