"""From two variants to a tuned fused bundle, through the Python API: tuned at a share, served by slot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fractune
from benchmarks.support.reference import expected_outputs
from tests.support.processes.cli_process import write_model

pytestmark = [pytest.mark.alone, pytest.mark.long]

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
