"""A decoder with a branch without a cache and one with it: each size of the past has one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import fractune
from fractune.models.open_sizes import settled
from fractune_core.errors import BadRequest
from fractune_core.model_inputs import as_shapes, each_shape
from fractune_core.named_sizes import Sizes
from tests.support.real_bundle import compile_model
from tests.support.translators import DECODER, HEADS, MERGED, SIDE, write_translator

SIZES: Sizes = {
    "batch_size": 1,
    "decoder_sequence_length": [1, 3],
    "encoder_sequence_length": 5,
    "past_decoder_sequence_length": [0, 4],
}


def test_each_size_of_the_past_has_its_branch(tmp_path: Path) -> None:
    model = write_translator(tmp_path / "t") / MERGED
    shapes = [as_shapes(each) for each in each_shape(settled(model, None, SIZES) or {})]
    own = [each["past_key_values.0.decoder.key"] for each in shapes]
    assert own == [[1, HEADS, past, SIDE] for past in (1, 4, 1, 4)]
    assert ["use_cache_branch=const:0" in each for each in shapes] == [True, False, True, False]
    chosen = (shapes[2], shapes[1])
    bundles = [compile_model(model, tmp_path / f"{at}.fractune", "", ["cpu:1"], each) for at, each in enumerate(chosen)]
    joined = fractune.load(fractune.join(bundles, out=tmp_path / "joined.fractune"))
    session, drawn = onnxruntime.InferenceSession(str(model)), np.random.default_rng(0)
    for has_past, each in zip((False, True), chosen, strict=True):
        given = {name: shape for name, shape in each.items() if "const" not in name}
        inputs = {
            name: drawn.integers(0, 9, shape) if name == "input_ids" else drawn.standard_normal(shape).astype("float32")
            for name, shape in given.items()
        }
        wanted = session.run(None, {**inputs, "use_cache_branch": np.array([has_past])})
        for ours, theirs in zip(joined.run(inputs), wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize(
    ("file", "sizes", "says"),
    [
        (MERGED, {"batch_size": 0}, "size 'batch_size' is 0; it must be from 1 to"),
        (DECODER, {"decoder_sequence_length": 0}, "size 'decoder_sequence_length' is 0; it must be from 1 to"),
        (
            MERGED,
            {"past_decoder_sequence_length": -1},
            "is -1; it must be from 0 to",
        ),
    ],
)
def test_only_a_past_of_such_a_decoder_may_be_0(tmp_path: Path, file: str, sizes: dict[str, int], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        settled(write_translator(tmp_path / "t") / file, None, sizes)
