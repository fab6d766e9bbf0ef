"""A session of a decoder gives ONNX Runtime's tokens, across buckets and chunks, and copies no cache."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import fractune
from fractune.local.timing_process import calls_of
from fractune.models.external_data import write_one_file
from fractune_core.errors import BadModel, BadRequest
from fractune_core.host.cpus import Quota
from fractune_runtime import cpu
from fractune_runtime.decoder import DecoderSession
from fractune_runtime.runner import Pace
from tests.support.decoders import VOCABULARY, Array, ByOnnxRuntime
from tests.support.paths import REPOSITORY
from tests.support.real_bundle import Small, compile_model
from tests.support.translators import (
    CROSS,
    CROSS_ROWS,
    DECODER,
    HEADS,
    LAYERS,
    MERGED,
    OWN,
    SIDE,
    WIDTH,
    WITH_PAST,
    write_recogniser,
    write_translator,
)

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
Pair = tuple[DecoderSession, ByOnnxRuntime]


@pytest.fixture
def pair(decoders: Path) -> Pair:
    return fractune.load(decoders / "decoder.fractune").decoder(), ByOnnxRuntime(decoders / "decoder.onnx")


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
    agrees(pair, PROMPT, 229)
    assert pair[0].length == pair[0].capacity == 240


def test_steps_are_paced_under_a_limit_and_prompts_are_not(
    decoders: Path, two_cpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.sched_setaffinity(0, two_cpus)
    monkeypatch.setattr(cpu, "tightest_quota", lambda _: Quota(150_000, 100_000))
    paced, step = list[Any](), Pace.step

    def counted(pace: Pace, function: Callable[..., Any], *arguments: Any) -> Any:
        paced.append(function)
        return step(pace, function, *arguments)

    monkeypatch.setattr(Pace, "step", counted)
    with pytest.warns(RuntimeWarning, match="untuned variant"):
        session = fractune.load(decoders / "decoder.fractune", threads=2).decoder()
    pair = session, ByOnnxRuntime(decoders / "decoder.onnx")
    agrees(pair, PROMPT[:8], 0)
    assert paced == []
    agrees(pair, PROMPT[8:9], 4)
    assert len(paced) == 5


def test_a_prompt_has_the_logits_of_one_token_alone(decoders: Path) -> None:
    model = fractune.load(decoders / "decoder-240-8.fractune")
    shapes = {spec.name: spec.shape for spec in model.outputs_of_last(model.specs[1][:1])}
    assert shapes == {"logits": (1, 1, VOCABULARY)}
    assert model.run(model.random_inputs())[0].shape == (1, 8, VOCABULARY)


def test_a_fork_goes_on_independently_and_a_reset_session_begins_again(pair: Pair, decoders: Path) -> None:
    agrees(pair, PROMPT, 2)
    fork = pair[0].fork()
    pair[0].reset()
    agrees((pair[0], ByOnnxRuntime(decoders / "decoder.onnx")), PROMPT[::-1], 3)
    np.testing.assert_allclose(fork.step(7), pair[1].logits(7), atol=1e-3)


def test_errors_are_one_clear_line_and_leave_the_cache_unchanged(pair: Pair) -> None:
    session = pair[0]
    session.prefill(PROMPT)
    with pytest.raises(
        BadRequest, match="the cache is full: 11 tokens and 300 more, and a call reads at most 240 before"
    ):
        session.prefill([1] * 300)
    for wrong in ([[1], [2]], [1.5], []):
        with pytest.raises(BadRequest, match="give whole numbers, 1 row"):
            session.prefill(wrong)
    assert session.length == 11


def test_the_page_on_small_language_models(decoders: Path, monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    page = (REPOSITORY / "docs/running.md").read_text(encoding="utf-8")
    code, *_ = re.findall(r"```python\n(.*?)```", page.partition("## A small language model")[2], re.DOTALL)
    monkeypatch.chdir(decoders)
    names = {"prompt": PROMPT}
    exec(code, names)  # noqa: S102  the page's own
    wanted, logits = [], pair[1].logits(*PROMPT)
    for _ in range(20):
        wanted.append(int(logits.argmax()))
        logits = pair[1].logits(wanted[-1])
    assert names["answer"] == wanted


def test_what_fit_times_is_a_step_with_a_full_cache(decoders: Path) -> None:
    _, ((threads, call),) = calls_of("fractune", str(decoders / "decoder.fractune"), [1], {})
    assert (threads, call().shape, call().shape) == (1, (1, VOCABULARY), (1, VOCABULARY))


@pytest.mark.parametrize(("form", "theirs"), [("grouped", "grouped"), ("scatters", "decoder")])
def test_a_cache_of_all_rows_stays_where_it_is(decoders: Path, form: str, theirs: str) -> None:
    # ONNX Runtime's cache grows from call to call, which TensorScatter's cannot.
    session = fractune.load(decoders / f"{form}.fractune").decoder()
    agrees((session, ByOnnxRuntime(decoders / f"{theirs}.onnx")), PROMPT, 20)
    with pytest.raises(BadRequest, match="the cache is full: 31 tokens and 34 more"):
        session.prefill([1] * 34)


def test_a_model_without_a_cache_has_no_session(small: Small) -> None:
    with pytest.raises(BadRequest, match="has no cache that is an input with new rows behind it"):
        fractune.load(small.bundle).decoder()


START = [1, 7, 9]
STEPS = 200


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


def test_a_recogniser_computes_what_it_reads_of_the_encoder_once(tmp_path: Path) -> None:
    encoder, decoder = write_recogniser(tmp_path)
    greedy = tmp_path / "greedy.onnx"
    write_one_file(decoder, greedy, greedy=True)
    sound = np.random.default_rng(3).standard_normal((1, 6, 8)).astype("float32")
    heard = fractune.load(
        compile_model(encoder, tmp_path / "encoder.fractune", "", ["cpu:1"], {"audio_features": [1, 6, 8]})
    )
    rows = {spec.name: array for spec, array in zip(heard.outputs, heard.run({"audio_features": sound}), strict=True)}
    bundles = [compiled(greedy, past, tokens) for past, tokens in ((16, 4), (208, 1))]
    session = fractune.load(fractune.join(bundles, out=tmp_path / "all.fractune")).decoder(rows)
    tokens = [int(session.prefill(START)[0])]
    while len(tokens) < STEPS:
        answer = session.step(tokens[-1])
        tokens.append(int(answer[0]))
    assert tokens == theirs(encoder, decoder, sound, STEPS)
    assert answer.shape == (1,)


def test_a_model_without_logits_has_no_tokens(tmp_path: Path) -> None:
    encoder, _ = write_recogniser(tmp_path)
    with pytest.raises(BadModel, match=r"encoder\.onnx: has no output 'logits'; leave --greedy out"):
        write_one_file(encoder, tmp_path / "greedy.onnx", greedy=True)


SOURCE = 5
HIDDEN = np.random.default_rng(0).standard_normal((1, SOURCE, WIDTH)).astype("float32")
Named = Mapping[str, Array]


def unmasked(folder: Path, past: int, graph: str = MERGED) -> Path:
    """A bundle of a step; with no past, of the first one, which computes the rows of the encoder."""
    own = {f"past_key_values.{name}": [1, HEADS, past or 1, SIDE] for name in OWN}
    cross = {f"past_key_values.{name}": [1, HEADS, SOURCE if past else 1, SIDE] for name in CROSS}
    branch = {"encoder_hidden_states": [1, SOURCE, WIDTH], f"use_cache_branch=const:{int(past > 0)}": [1]}
    inputs = {"input_ids": [1, 1], **own, **cross, **(branch if graph == MERGED else {})}
    return compile_model(folder / graph, folder / f"{past}.fractune", "", ["cpu:1"], inputs)


def by_onnxruntime(graph: Path, inputs: Named) -> dict[str, Array]:
    """The outputs by name, where `present` is `past_key_values` for the next step."""
    session = onnxruntime.InferenceSession(str(graph))
    names = [each.name.replace("present", "past_key_values") for each in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))


@pytest.mark.parametrize(
    ("places", "graph", "pasts"),
    [("sliced", MERGED, (0, 6)), ("gathered", WITH_PAST, (6,)), ("distances", MERGED, (6,))],
)
def test_greedy_tokens(tmp_path: Path, places: str, graph: str, pasts: Sequence[int]) -> None:
    """With a bundle of no past, its branch computes the rows of the encoder."""
    folder = write_translator(tmp_path, places)
    bundles = [unmasked(folder, past, graph) for past in pasts]
    bundle = bundles[0] if len(bundles) == 1 else fractune.join(bundles, out=tmp_path / "joined.fractune").path
    first = wanted = by_onnxruntime(folder / DECODER, {"input_ids": np.array([[1]]), "encoder_hidden_states": HIDDEN})
    token, cross = 1, {name: each for name, each in wanted.items() if ".encoder." in name}
    given = {} if 0 in pasts else cross
    session = fractune.load(bundle).decoder({**given, **({"encoder_hidden_states": HIDDEN} if graph == MERGED else {})})
    for _ in range(session.capacity):
        np.testing.assert_allclose(session.step(token), wanted["logits"][:, -1], atol=1e-5)
        token = int(wanted["logits"].argmax())
        own = {name: each for name, each in wanted.items() if ".decoder." in name}
        wanted = by_onnxruntime(folder / WITH_PAST, {"input_ids": np.array([[token]]), **own, **cross})
    np.testing.assert_allclose(session.step(token), wanted["logits"][:, -1], atol=1e-5)
    session.reset()
    np.testing.assert_allclose(session.step(1), first["logits"][:, -1], atol=1e-5)


def test_a_decoder_that_computes_with_positions_has_no_session(tmp_path: Path) -> None:
    bundle = unmasked(write_translator(tmp_path, "computed"), 4, WITH_PAST)
    cross = {f"past_key_values.{name}": np.zeros((1, HEADS, SOURCE, SIDE), "float32") for name in CROSS}
    with pytest.raises(BadRequest, match="has no input for which rows are in use"):
        fractune.load(bundle).decoder(cross)
    with pytest.raises(BadRequest, match="has no input nope that a session can keep; beside its caches it takes "):
        fractune.load(bundle).decoder({**cross, "nope": HIDDEN})
