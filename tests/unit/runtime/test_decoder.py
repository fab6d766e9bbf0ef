"""A session of a decoder gives ONNX Runtime's tokens, across buckets and chunks, and copies no cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import fractune
from fractune.local.timing_process import calls_of
from fractune_core.errors import BadRequest
from fractune_runtime.decoder import DecoderSession
from tests.support.decoders import VOCABULARY, ByOnnxRuntime, compile_decoder, write_decoder
from tests.support.paths import REPOSITORY
from tests.unit.conftest import Small

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
Pair = tuple[DecoderSession, ByOnnxRuntime]


def joined(folder: Path, buckets: Sequence[tuple[int, int]]) -> tuple[Path, fractune.JoinedBundle]:
    model = write_decoder(folder / "decoder.onnx")
    bundles = [compile_decoder(model, past, tokens) for past, tokens in buckets]
    return model, fractune.join(bundles, out=folder / "decoder.fractune")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, fractune.JoinedBundle]:
    return joined(tmp_path_factory.mktemp("decoder"), [(16, 1), (40, 1), (16, 8)])


@pytest.fixture
def pair(decoder: tuple[Path, fractune.JoinedBundle]) -> Pair:
    model, bundle = decoder
    return fractune.load(bundle).decoder(), ByOnnxRuntime(model)


def agrees(pair: Pair, ids: Sequence[int], steps: int) -> None:
    """Whether a prompt and the most probable tokens behind it have the same logits."""
    ours, theirs = pair[0].prefill(ids), pair[1].logits(*ids)
    for _ in range(steps):
        np.testing.assert_allclose(ours, theirs, atol=1e-3)
        token = int(theirs.argmax())
        assert int(ours.argmax()) == token
        ours, theirs = pair[0].step(token), pair[1].logits(token)
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_greedy_tokens_across_two_buckets(pair: Pair) -> None:
    agrees(pair, PROMPT, 29)
    assert pair[0].length == pair[0].capacity == 40


def test_a_prompt_has_the_logits_of_one_token_alone(decoder: tuple[Path, fractune.JoinedBundle]) -> None:
    model = fractune.load(decoder[0].with_name("decoder-16-8.fractune"))
    shapes = {spec.name: spec.shape for spec in model.outputs_of_last(model.specs[1][:1])}
    assert shapes == {"logits": (1, 1, VOCABULARY)}
    assert model.run(model.random_inputs())[0].shape == (1, 8, VOCABULARY)


def test_a_fork_goes_on_independently_and_a_reset_session_begins_again(
    pair: Pair, decoder: tuple[Path, fractune.JoinedBundle]
) -> None:
    agrees(pair, PROMPT, 2)
    fork = pair[0].fork()
    pair[0].reset()
    agrees((pair[0], ByOnnxRuntime(decoder[0])), PROMPT[::-1], 3)
    np.testing.assert_allclose(fork.step(7), pair[1].logits(7), atol=1e-3)


def test_errors_are_one_clear_line_and_leave_the_cache_unchanged(pair: Pair) -> None:
    session = pair[0]
    session.prefill(PROMPT)
    with pytest.raises(
        BadRequest, match="the cache is full: 11 tokens and 31 more, and a call reads at most 40 before"
    ):
        session.prefill([1] * 31)
    for wrong in ([[1], [2]], [1.5], []):
        with pytest.raises(BadRequest, match="give whole numbers, 1 row"):
            session.prefill(wrong)
    assert session.length == 11


def test_the_page_on_small_language_models(
    decoder: tuple[Path, fractune.JoinedBundle], monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    page = (REPOSITORY / "docs/running.md").read_text(encoding="utf-8")
    code, *_ = re.findall(r"```python\n(.*?)```", page.partition("## A small language model")[2], re.DOTALL)
    monkeypatch.chdir(decoder[1].path.parent)
    names = {"prompt": PROMPT}
    exec(code, names)  # noqa: S102  the page's own
    wanted, logits = [], pair[1].logits(*PROMPT)
    for _ in range(20):
        wanted.append(int(logits.argmax()))
        logits = pair[1].logits(wanted[-1])
    assert names["answer"] == wanted


def test_what_fit_times_is_a_step_with_a_full_cache(decoder: tuple[Path, fractune.JoinedBundle]) -> None:
    _, ((threads, call),) = calls_of("fractune", str(decoder[1].path), [1], {})
    assert (threads, call().shape, call().shape) == (1, (1, VOCABULARY), (1, VOCABULARY))


@pytest.mark.parametrize("form", ["grouped", "scatters"])
def test_a_cache_of_all_rows_stays_where_it_is(tmp_path: Path, form: str) -> None:
    written = write_decoder(tmp_path / "decoder.onnx", **{form: True})
    bundles = [compile_decoder(written, 32, tokens, **{form: True}) for tokens in (1, 8)]
    # ONNX Runtime's cache grows from call to call, which TensorScatter's cannot.
    model = written if form == "grouped" else write_decoder(tmp_path / "grows.onnx")
    session = fractune.load(fractune.join(bundles, out=tmp_path / "decoder.fractune")).decoder()
    agrees((session, ByOnnxRuntime(model)), PROMPT, 20)
    with pytest.raises(BadRequest, match="the cache is full: 31 tokens and 2 more"):
        session.prefill([1, 2])


def test_a_model_without_a_cache_has_no_session(small: Small) -> None:
    with pytest.raises(BadRequest, match="has no cache that is an input with new rows behind it"):
        fractune.load(small.bundle).decoder()


@pytest.mark.long
def test_200_greedy_tokens_across_two_buckets(tmp_path: Path) -> None:
    model, bundle = joined(tmp_path, [(128, 1), (256, 1), (128, 16), (256, 16)])
    agrees((fractune.load(bundle).decoder(), ByOnnxRuntime(model)), PROMPT * 3, 200)
