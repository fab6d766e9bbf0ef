"""The made decoders: a step behind a prompt gives the logits of the longer prompt. Shapes are those of the inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.support.decoder_peers import TOKEN, OnnxRuntime
from benchmarks.support.decoders import MODELS, Sizes, write_decoder

SMALL = {
    "qwen": replace(MODELS["qwen"], layers=2, width=64, heads=4, inner=96, vocabulary=40, positions=32),
    "qwen of 4 bits": replace(MODELS["qwen"], layers=2, width=64, heads=4, inner=96, vocabulary=40, bits=4),
    "whisper": replace(MODELS["whisper"], layers=2, width=64, inner=96, vocabulary=40, source=9),
    "marian": replace(MODELS["marian"], layers=2, width=64, inner=96, vocabulary=40, source=9),
}


@pytest.mark.parametrize("sizes", SMALL.values(), ids=SMALL)
def test_a_step_continues_a_prompt(sizes: Sizes, tmp_path: Path) -> None:
    path = write_decoder(tmp_path / "m.onnx", sizes)
    runtime = OnnxRuntime(str(path), sizes, threads=1)
    ids = np.array([3, 1, 4, 1, TOKEN])
    whole = runtime.prefill(ids)
    runtime.prefill(ids[:-1])
    np.testing.assert_allclose(runtime.step(), whole, atol=0.05 if sizes.bits else 1e-4)
    given = sizes.shapes(1, 16)
    inputs = onnx.load(str(path), load_external_data=False).graph.input
    assert {each.name: len(each.type.tensor_type.shape.dim) for each in inputs} == {
        name: len(shape) for name, shape in given.items()
    }
