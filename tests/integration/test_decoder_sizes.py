"""A decoder with a cache is tuned for two sizes of its past by name; each bucket computes what ONNX Runtime does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fractune
from fractune_core.errors import BadRequest
from tests.support.decoders import HEAD, KEY_HEADS, VOCABULARY, write_plain_decoder
from tests.support.onnx_models import run_by_onnxruntime
from tests.support.processes.cli_process import events, run_fractune

pytestmark = [pytest.mark.alone, pytest.mark.long]


def inputs_of(past: int, steps: int) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(past + steps)
    cache = (1, KEY_HEADS, past, HEAD)
    return {
        "input_ids": drawn.integers(0, VOCABULARY, (1, steps)),
        "attention_mask": np.ones((1, past + steps), np.int64),
        **{f"past.{part}.0": drawn.standard_normal(cache).astype(np.float32) for part in ("key", "value")},
    }


@pytest.mark.filterwarnings("ignore:.*runs its untuned variant:RuntimeWarning")
def test_each_pair_of_sizes_has_its_bucket(tmp_path: Path) -> None:
    model, bundle = write_plain_decoder(tmp_path / "m.onnx", layers=1), tmp_path / "m.fractune"
    command = (
        *("tune", str(model), "--size", "past=4,8", "--size", "s=1", "--size", "total=5,9", "--compete", "none"),
        *("--shares", "cpu:1", "--trials", "0", "--state", str(tmp_path / "state"), "--out", str(bundle), "--json"),
    )
    steps = [each["text"] for each in events(run_fractune(*command, timeout_s=600)) if each["event"] == "step"]
    assert steps[0].startswith("2 of 4 combinations of sizes are left out: sizes: total (9) and s + past (5)")
    loaded = fractune.load(bundle)
    for past in (4, 8):
        given = inputs_of(past, 1)
        for output, wanted in zip(loaded.run(given), run_by_onnxruntime(model, given), strict=True):
            np.testing.assert_allclose(output, wanted, atol=1e-4)
    with pytest.raises(BadRequest, match=r"no bucket of m\.fractune has the shapes"):
        loaded.run(inputs_of(6, 1))
