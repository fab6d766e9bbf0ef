"""A session of a decoder without a mask of its own rows, as optimum writes translators, gives ONNX Runtime's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import fractune
from fractune_core.errors import BadRequest
from tests.support.decoders import Array
from tests.support.real_bundle import compile_model
from tests.support.translators import CROSS, DECODER, HEADS, MERGED, OWN, SIDE, WIDTH, WITH_PAST, write_translator

SOURCE = 5
HIDDEN = np.random.default_rng(0).standard_normal((1, SOURCE, WIDTH)).astype("float32")
Named = Mapping[str, Array]


def compiled(folder: Path, past: int, graph: str = MERGED) -> Path:
    own = {f"past_key_values.{name}": [1, HEADS, past, SIDE] for name in OWN}
    cross = {f"past_key_values.{name}": [1, HEADS, SOURCE, SIDE] for name in CROSS}
    merged = {"encoder_hidden_states": [1, SOURCE, WIDTH], "use_cache_branch=const:1": [1]} if graph == MERGED else {}
    return compile_model(
        folder / graph, folder / f"{past}.fractune", "", ["cpu:1"], {"input_ids": [1, 1], **own, **cross, **merged}
    )


def by_onnxruntime(graph: Path, inputs: Named) -> dict[str, Array]:
    """The outputs by name, where `present` is `past_key_values` for the next step."""
    session = onnxruntime.InferenceSession(str(graph))
    names = [each.name.replace("present", "past_key_values") for each in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))


@pytest.mark.parametrize(
    ("places", "graph", "pasts"),
    [("sliced", MERGED, (4, 10)), ("gathered", WITH_PAST, (6,)), ("distances", MERGED, (6,))],
)
def test_greedy_tokens(tmp_path: Path, places: str, graph: str, pasts: Sequence[int]) -> None:
    folder = write_translator(tmp_path, places)
    bundles = [compiled(folder, past, graph) for past in pasts]
    bundle = bundles[0] if len(bundles) == 1 else fractune.join(bundles, out=tmp_path / "joined.fractune").path
    token = 1
    wanted = by_onnxruntime(folder / DECODER, {"input_ids": np.array([[token]]), "encoder_hidden_states": HIDDEN})
    cross = {name: each for name, each in wanted.items() if ".encoder." in name}
    fixed = {**cross, **({"encoder_hidden_states": HIDDEN} if graph == MERGED else {})}
    session = fractune.load(bundle).decoder(fixed)
    for _ in range(session.capacity):
        np.testing.assert_allclose(session.step(token), wanted["logits"][:, -1], atol=1e-5)
        token = int(wanted["logits"].argmax())
        own = {name: each for name, each in wanted.items() if ".decoder." in name}
        wanted = by_onnxruntime(folder / WITH_PAST, {"input_ids": np.array([[token]]), **own, **cross})
    np.testing.assert_allclose(session.step(token), wanted["logits"][:, -1], atol=1e-5)
    session.reset()
    first = by_onnxruntime(folder / DECODER, {"input_ids": np.array([[1]]), "encoder_hidden_states": HIDDEN})
    np.testing.assert_allclose(session.step(1), first["logits"][:, -1], atol=1e-5)


def test_rows_of_the_encoder_are_computed_by_the_branch_without_a_past(tmp_path: Path) -> None:
    folder = write_translator(tmp_path)
    first = {f"past_key_values.{name}": [1, HEADS, 1, SIDE] for name in (*OWN, *CROSS)}
    first |= {"input_ids": [1, 1], "encoder_hidden_states": [1, SOURCE, WIDTH], "use_cache_branch=const:0": [1]}
    bundles = [compile_model(folder / MERGED, tmp_path / "0.fractune", "", ["cpu:1"], first), compiled(folder, 3)]
    joined = fractune.load(fractune.join(bundles, out=tmp_path / "joined.fractune"))
    wanted = by_onnxruntime(folder / DECODER, {"input_ids": np.array([[1]]), "encoder_hidden_states": HIDDEN})
    logits = joined.decoder({"encoder_hidden_states": HIDDEN}).step(1)
    np.testing.assert_allclose(logits, wanted["logits"][:, -1], atol=1e-5)


def test_a_decoder_that_computes_with_positions_has_no_session(tmp_path: Path) -> None:
    bundle = compiled(write_translator(tmp_path, "computed"), 4, WITH_PAST)
    cross = {f"past_key_values.{name}": np.zeros((1, HEADS, SOURCE, SIDE), "float32") for name in CROSS}
    with pytest.raises(BadRequest, match="has no input for which rows are in use"):
        fractune.load(bundle).decoder(cross)
