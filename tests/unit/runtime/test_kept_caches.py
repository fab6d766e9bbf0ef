"""Caches through `io_binding`, in a loop as users of ONNX Runtime write it: the same tokens, and no copy of a cache."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import fractune
from fractune_core.errors import BadRequest
from fractune_runtime.kept_caches import KeptRows
from tests.support.decoders import HEAD, KEY_HEADS

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
PASTS, PRESENTS = ([f"{kind}.{part}.0" for part in ("key", "value")] for kind in ("past", "present"))
STEPS = 200


class Loop:
    """Greedy tokens: each `present` of a step is the `past` of the next."""

    def __init__(self, session: Any, ort: Any) -> None:
        self.binding, self._session, self.length = session.io_binding(), session, 0
        for name in PASTS:
            self.bind(name, ort.OrtValue.ortvalue_from_numpy(np.zeros((1, KEY_HEADS, 0, HEAD), "float32")))

    def bind(self, name: str, value: Any) -> None:
        self.binding.bind_ortvalue_input(name, value)

    def logits(self, ids: Sequence[int]) -> np.ndarray[Any, Any]:
        """Behind the last of these tokens."""
        mask = np.ones((1, self.length + len(ids)), "int64")
        positions = self.length + np.arange(len(ids))[None]
        for name, array in (("input_ids", [ids]), ("attention_mask", mask), ("position_ids", positions)):
            self.binding.bind_cpu_input(name, np.asarray(array, "int64"))
        for name in ("logits", *PRESENTS):
            self.binding.bind_output(name, "cpu")
        self.binding.synchronize_inputs()
        self._session.run_with_iobinding(self.binding)
        logits, *presents = self.binding.get_outputs()
        for name, value in zip(PASTS, presents, strict=True):
            self.bind(name, value)
        self.presents, self.length = presents, self.length + len(ids)
        last: np.ndarray[Any, Any] = logits.numpy()[0, -1]
        return last

    def tokens(self, prompt: Sequence[int], steps: int) -> list[int]:
        made = [int(self.logits(prompt).argmax())]
        while len(made) < steps:
            made.append(int(self.logits(made[-1:]).argmax()))
        return made


@pytest.fixture
def model(decoders: Path) -> Path:
    return decoders / "decoder.onnx"


@pytest.fixture(scope="module")
def session(decoders: Path) -> fractune.InferenceSession:
    return fractune.InferenceSession(decoders / "decoder.fractune")


def theirs(model: Path) -> Loop:
    return Loop(onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"]), onnxruntime)


def test_the_tokens_of_200_steps_are_those_of_onnx_runtime_without_a_copy(
    model: Path, session: fractune.InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = theirs(model).tokens(PROMPT, STEPS)
    monkeypatch.setattr(KeptRows, "numpy", lambda _: pytest.fail("copied"))
    ours = Loop(session, fractune)
    assert ours.tokens(PROMPT, STEPS) == wanted
    assert ours.presents[0].shape() == [1, KEY_HEADS, len(PROMPT) + STEPS - 1, HEAD]
    assert ours.presents[0].data_type() == "tensor(float)"


def test_rows_stay_right_for_who_holds_them_and_arrays_are_taken(
    model: Path, session: fractune.InferenceSession
) -> None:
    ours, other = Loop(session, fractune), theirs(model)
    for loop in (ours, other):
        loop.logits(PROMPT)
    held = list(zip(PASTS, ours.presents, other.presents, strict=True))
    np.testing.assert_allclose(ours.logits([7]), other.logits([7]), atol=1e-3)
    for loop, at in ((ours, 1), (other, 2)):  # another token from the prompt on: its rows take the places of the first
        for each in held:
            loop.bind(each[0], each[at])
        loop.length = len(PROMPT)
    seventh = list(zip(ours.presents, other.presents, strict=True))
    np.testing.assert_allclose(ours.logits([8]), other.logits([8]), atol=1e-3)
    for mine, its in seventh:
        np.testing.assert_allclose(mine.numpy(), its.numpy(), atol=1e-4)
    for each in held:  # arrays of another session
        ours.bind(each[0], fractune.OrtValue(each[2].numpy()))
        other.bind(each[0], each[2])
    ours.length = other.length = len(PROMPT)
    np.testing.assert_allclose(ours.logits([9, 2]), other.logits([9, 2]), atol=1e-3)


def test_errors_are_one_line_and_nothing_is_lost(session: fractune.InferenceSession) -> None:
    ours = Loop(session, fractune)
    first = ours.logits(PROMPT)
    kept = dict(zip(PASTS, ours.presents, strict=True))
    ours.length += 3
    with pytest.raises(BadRequest, match=r"'past\.value\.0' has other rows than the mask, which has 14 before"):
        ours.logits([1])
    with pytest.raises(BadRequest, match="these are rows of a session's cache"):
        ours.presents[0].update_inplace(np.zeros(1))
    ours.length = 500
    for name in PASTS:
        ours.bind(name, fractune.OrtValue(np.zeros((1, KEY_HEADS, 500, HEAD), "float32")))
    with pytest.raises(BadRequest, match="the cache is full: the past has 500 rows, and a call reads at most 240"):
        ours.logits([1])
    again = Loop(session, fractune)
    np.testing.assert_array_equal(again.logits(PROMPT), first)
    for name, value in kept.items():
        ours.bind(name, value)
    ours.length = len(PROMPT)
    np.testing.assert_allclose(ours.logits([4]), again.logits([4]), atol=1e-5)


def aligned(shape: Sequence[int], beyond: int) -> np.ndarray[Any, Any]:
    """Zeros that begin so many bytes behind a multiple of 64."""
    memory = np.zeros(int(np.prod(shape)) * 4 + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + beyond
    return memory[begin : begin + int(np.prod(shape)) * 4].view(np.float32).reshape(shape)


def test_one_memory_for_past_and_present(decoders: Path) -> None:
    """As programs of onnxruntime-genai bind GroupQueryAttention's buffers."""
    made, rows = list[list[int]](), 64
    ours = fractune.InferenceSession(decoders / "grouped.fractune")
    its = onnxruntime.InferenceSession(str(decoders / "grouped.onnx"))
    for session, beyond in ((ours, 0), (ours, 16), (its, 0)):
        binding, tokens, length = session.io_binding(), [*PROMPT], 0
        buffers = {name: aligned((1, KEY_HEADS, rows, HEAD), beyond) for name in ("key", "value")}
        made.append([])
        while len(made[-1]) < 30:
            binding.bind_cpu_input("input_ids", np.array([tokens], "int64"))
            binding.bind_cpu_input("attention_mask", np.ones((1, length + len(tokens)), "int64"))
            for name, array in buffers.items():
                place = ("cpu", 0, np.float32, array.shape, array.ctypes.data)
                binding.bind_input(f"past.{name}.0", *place)
                binding.bind_output(f"present.{name}.0", *place)
            binding.bind_output("logits")
            session.run_with_iobinding(binding)
            length += len(tokens)
            tokens = [int(binding.get_outputs()[-1].numpy()[0, -1].argmax())]
            made[-1] += tokens
    assert made[0] == made[1] == made[2]
