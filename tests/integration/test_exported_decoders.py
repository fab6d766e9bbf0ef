"""Decoders as exporters write them, from the command that `inspect` prints to ONNX Runtime's greedy tokens."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fractune
from fractune_core.errors import BadRequest
from tests.support.decoders import Array, ByOnnxRuntime, write_decoder
from tests.support.onnx_models import run_by_onnxruntime
from tests.support.processes.cli_process import run_fractune
from tests.support.translators import DECODER, ENCODER, MERGED, WITH_PAST, WORDS, write_translator

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:.*runs its untuned variant:RuntimeWarning"),
]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3] * 10
STEPS = 200


def tuned(model: Path, folder: Path, *options: str) -> None:
    """Run the last line of `inspect`, without a search."""
    command = shlex.split(run_fractune("inspect", str(model), cwd=folder).stdout.splitlines()[-1])
    assert command[:3] == ["fractune", "tune", str(model)]
    quick = ("--trials", "0", "--compete", "none", "--state", str(folder / "state"), *options)
    run_fractune(*command[1:], *quick, timeout_s=1200, cwd=folder)


def greedy(prompt: list[int], steps: int, logits: Callable[..., Array]) -> list[int]:
    made = list[int]()
    answer = logits(*prompt)
    while len(made) < steps:
        made.append(int(answer.argmax()))
        answer = logits(made[-1])
    return made


def test_a_decoder_with_its_weights_beside_it(tmp_path: Path) -> None:
    model = write_decoder(tmp_path / "decoder.onnx", weights_beside=True)
    tuned(model, tmp_path)
    loaded = fractune.load(tmp_path / "decoder.fractune", runtimes=False)
    session = loaded.decoder()
    assert (len(session.fork()._buckets), session.capacity) == (4, 1024)
    wanted = greedy(PROMPT, STEPS, ByOnnxRuntime(model).logits)
    assert greedy(PROMPT, STEPS, lambda *ids: session.prefill(ids)) == wanted
    assert session.length > 256, "the steps were in two buckets"
    with pytest.raises(BadRequest, match=r"no bucket of decoder\.fractune has the shapes"):
        loaded.run({spec.name: np.zeros([size or 6 for size in spec.shape], spec.dtype) for spec in loaded.inputs})


def test_a_decoder_of_genai_in_its_folder(tmp_path: Path) -> None:
    (folder := tmp_path / "phi").mkdir()
    model = write_decoder(folder / "model.onnx", grouped=True)
    config = {"model": {"context_length": 320, "decoder": {"filename": model.name}}}
    (folder / "genai_config.json").write_text(json.dumps(config))
    tuned(folder, tmp_path, "--greedy")
    session = fractune.load(tmp_path / "model.fractune", runtimes=False).decoder()
    tokens = [int(session.prefill(PROMPT)[0])]
    while len(tokens) < STEPS:
        tokens.append(int(session.step(tokens[-1])[0]))
    assert tokens == greedy(PROMPT, STEPS, ByOnnxRuntime(model).logits)


def test_an_encoder_and_its_merged_decoder(tmp_path: Path) -> None:
    folder = write_translator(tmp_path / "whisper")
    sizes = ("past_decoder_sequence_length=0,16,256", "encoder_sequence_length=12")
    tuned(folder, tmp_path, *(word for each in sizes for word in ("--size", each)))
    text = np.random.default_rng(0).integers(0, WORDS, (1, 12))
    (hidden,) = fractune.load(tmp_path / f"{Path(ENCODER).stem}.fractune").run({"input_ids": text})
    (wanted,) = run_by_onnxruntime(folder / ENCODER, {"input_ids": text})
    np.testing.assert_allclose(hidden, wanted, atol=1e-4)
    decoder = fractune.load(tmp_path / f"{Path(MERGED).stem}.fractune", runtimes=False)
    session = decoder.decoder({"encoder_hidden_states": hidden})
    assert greedy([1], STEPS, session.step) == greedy([1], STEPS, by_two_graphs(folder, wanted))


def by_two_graphs(folder: Path, hidden: Array) -> Callable[[int], Array]:
    import onnxruntime

    first, later = (onnxruntime.InferenceSession(str(folder / name)) for name in (DECODER, WITH_PAST))
    held = dict[str, Array]()

    def logits(token: int) -> Array:
        given = {"input_ids": np.array([[token]]), **(held or {"encoder_hidden_states": hidden})}
        session = later if held else first
        names = [each.name.replace("present", "past_key_values") for each in session.get_outputs()]
        found = dict(zip(names, session.run(None, given), strict=True))
        answer: Array = found.pop("logits")
        held.update(found)
        return answer

    return logits
