"""A speech recogniser with cross attention, and bundles that return tokens: ONNX Runtime's greedy ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import fractune
from fractune.models.external_data import write_one_file
from fractune_core.errors import BadModel
from tests.support.decoders import Array
from tests.support.real_bundle import compile_model
from tests.support.translators import CROSS_ROWS, HEADS, LAYERS, SIDE, write_recogniser

START = [1, 7, 9]
CAPACITY = 208


def theirs(encoder: Path, decoder: Path, sound: Array, steps: int) -> list[int]:
    session = onnxruntime.InferenceSession(str(decoder))
    rows = onnxruntime.InferenceSession(str(encoder)).run(None, {"audio_features": sound})
    fixed = {f"past_{name}": each for name, each in zip(CROSS_ROWS, rows, strict=True)}
    names = [each.name for each in session.get_inputs() if "_self_" in each.name]
    cache = dict.fromkeys(names, np.zeros((1, HEADS, 0, SIDE), "float32"))
    tokens, made, length = START, list[int](), 0
    while len(made) < steps:
        places = {"position_ids": length + np.arange(len(tokens))[None], "input_ids": np.array([tokens])}
        length += len(tokens)
        given = {**places, **cache, **fixed, "attention_mask": np.ones((1, length), "int64")}
        logits, *presents = session.run(None, given)
        cache = dict(zip(names, presents, strict=True))
        tokens = [int(logits[0, -1].argmax())]
        made += tokens
    return made


def compiled(model: Path, past: int, tokens: int) -> Path:
    own = {f"past_{part}_self_{layer}": [1, HEADS, past, SIDE] for layer in range(LAYERS) for part in ("key", "value")}
    inputs = {"input_ids": [1, tokens], "attention_mask": [1, past + tokens], **own}
    return compile_model(model, model.with_name(f"{model.stem}-{past}-{tokens}.fractune"), "", ["cpu:1"], inputs)


@pytest.mark.parametrize("steps", [30, pytest.param(200, marks=pytest.mark.long)])
def test_a_recogniser_computes_what_it_reads_of_the_encoder_once(tmp_path: Path, steps: int) -> None:
    encoder, decoder = write_recogniser(tmp_path)
    (tmp_path / "greedy").mkdir()
    greedy = tmp_path / "greedy" / "decoder.onnx"
    write_one_file(decoder, greedy, greedy=True)
    sound = np.random.default_rng(3).standard_normal((1, 6, 8)).astype("float32")
    wanted = theirs(encoder, decoder, sound, steps)
    heard = fractune.load(
        compile_model(encoder, tmp_path / "encoder.fractune", "", ["cpu:1"], {"audio_features": [1, 6, 8]})
    )
    rows = {spec.name: array for spec, array in zip(heard.outputs, heard.run({"audio_features": sound}), strict=True)}
    for model in (decoder, greedy):
        bundles = [compiled(model, past, tokens) for past, tokens in ((16, 4), (16, 1), (CAPACITY, 1))]
        session = fractune.load(fractune.join(bundles, out=model.with_name("all.fractune"))).decoder(rows)
        made = [session.prefill(START)]
        tokens = [int(made[0].argmax() if model == decoder else made[0][0])]
        while len(tokens) < steps:
            answer = session.step(tokens[-1])
            tokens.append(int(answer.argmax() if model == decoder else answer[0]))
        assert tokens == wanted
        assert answer.shape == ((1, 40) if model == decoder else (1,))


def test_a_model_without_logits_has_no_tokens(tmp_path: Path) -> None:
    encoder, _ = write_recogniser(tmp_path)
    with pytest.raises(BadModel, match=r"encoder\.onnx: has no output 'logits'; leave --greedy out"):
        write_one_file(encoder, tmp_path / "greedy.onnx", greedy=True)
