"""What padding is found to change, for models in NumPy that stand in for a bundle's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fractune.comparing import padded_outputs
from fractune.comparing.padded_outputs import compare_padded
from fractune_core.errors import BadModel
from fractune_core.files.buckets import OpenAxes
from fractune_runtime.bucketed_model import BucketedModel
from fractune_runtime.tvm_runtime.tensors import TensorSpec

CHANNELS = 8
RNG = np.random.default_rng(3)
TABLE, WEIGHT = RNG.standard_normal((50, CHANNELS)), np.abs(RNG.standard_normal((CHANNELS, CHANNELS)))
TAPS = RNG.standard_normal((3, CHANNELS, CHANNELS))


class InNumPy:
    """A model over the lengths 16 and 64; `compute` gets its padded input."""

    buckets = bucket_sizes = ({"length": 16}, {"length": 64})
    outputs = (TensorSpec("y", "float32", (1, CHANNELS)),)

    def __init__(self, name: str, compute: Callable[..., Any]) -> None:
        is_ids = name in ("ids", "n")
        self.inputs = [TensorSpec(name, "int64", (1, None)) if is_ids else TensorSpec(name, "float32", (1, None, 8))]
        self.inputs.append(TensorSpec("mask", "int64", (1, None)))
        opened = [None, "length"] if is_ids else [None, "length", None]
        self.axes = OpenAxes({name: opened, "mask": [None, "length"]}, {"y": [None, None]})
        self._name, self._compute = name, compute

    def run_in(self, bucket: int, inputs: Mapping[str, Any]) -> list[Any]:
        def padded(array: Any) -> Any:
            missing = self.bucket_sizes[bucket]["length"] - array.shape[1]
            return np.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)])

        outputs = self._compute(padded(inputs[self._name]), padded(inputs["mask"]))
        return [outputs.astype("float32")]

    def as_they_are(self, inputs: Mapping[str, Any]) -> list[Any]:
        return [self._compute(inputs[self._name], inputs["mask"]).astype("float32")]


def weights(x: Any) -> Any:
    """A softmax over the length, of the squared norms."""
    norms = (x * x).sum(-1, keepdims=True)
    raised = np.exp(norms - norms.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def rows(ids: Any) -> Any:
    """Not a number for an id that the table has not, as look-ups give it."""
    return np.where((ids < len(TABLE))[..., None], TABLE[np.minimum(ids, len(TABLE) - 1)], np.nan)


def convolved(x: Any) -> Any:
    wide = np.pad(x, [(0, 0), (1, 1), (0, 0)])
    return sum(wide[:, tap : tap + x.shape[1]] @ TAPS[tap] for tap in range(3))


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("x", lambda x, _: (x @ WEIGHT).max(1)),
        ("x", lambda x, _: np.maximum(convolved(x), 0).max(1)),
        ("x", lambda x, _: x.mean(1)),
        ("ids", lambda ids, _: rows(ids).max(1)),
        ("x", lambda x, padding: (x * (1 - padding)[..., None]).sum(1) / np.maximum((1 - padding).sum(1), 1)),
        ("n", lambda n, _: n.max(1)[:, None].repeat(CHANNELS, 1)),
        ("x", lambda x, _: np.concatenate([x.mean(1)[:, 1:], np.full((1, 1), -np.inf)], 1)),
        ("x", lambda x, _: (weights(x) * x).sum(1)),
        ("x", lambda x, _: np.minimum(np.maximum(x - 3, 0).min(1), 1)),
    ],
    ids=[
        *("maximum", "maximum after a convolution", "mean", "maximum of rows", "a mask that is one for padding"),
        *("maximum of integers", "one number is always infinite", "attention by the norm", "minimum of large values"),
    ],
)
def test_what_sees_the_padding_may_not_be_padded(name: str, compute: Callable[..., Any]) -> None:
    found = compare_padded(cast("BucketedModel", InNumPy(name, compute)))
    assert not found.proved
    assert "of inputs of length 16 differs" in found.reason


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, _: np.maximum(x[:, : x.shape[1] // 2 * 2].reshape(1, -1, 2, CHANNELS).sum(2), 0).max(1, initial=0),
        lambda x, _: x[:, :17].mean(1),
        lambda x, _: np.full((1, CHANNELS), x.shape[1] % 2) + 0 * x.sum(1),
    ],
    ids=["pairs of positions", "the first positions", "whether the length is odd"],
)
def test_what_differs_only_between_the_shapes_needs_an_exact_reference(compute: Callable[..., Any]) -> None:
    model = InNumPy("x", compute)
    found = compare_padded(cast("BucketedModel", model), exact=model.as_they_are)
    assert not found.proved
    assert "differs" in found.reason


def test_an_exact_reference_of_another_arithmetic_is_left_out() -> None:
    model = InNumPy("x", lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1))
    assert compare_padded(cast("BucketedModel", model), exact=model.as_they_are).reason.endswith("which pads nothing")
    found = compare_padded(
        cast("BucketedModel", model), exact=lambda inputs: [2 * each for each in model.as_they_are(inputs)]
    )
    assert found.proved
    assert "nothing else was there to compare" in found.reason


def test_an_exact_reference_that_cannot_run_is_left_out() -> None:
    def exact(_: dict[str, Any]) -> list[Any]:
        raise BadModel("there is no kernel for this type")

    found = compare_padded(cast("BucketedModel", InNumPy("x", lambda x, m: (x * m[..., None]).sum(1))), exact=exact)
    assert (found.proved, "nothing else was there to compare" in found.reason) == (True, True)
    assert not compare_padded(cast("BucketedModel", InNumPy("x", lambda x, _: x.mean(1))), exact=exact).proved


def test_sizes_that_cannot_run_as_they_are_may_not_be_padded() -> None:
    model = InNumPy("x", lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1))

    def exact(inputs: dict[str, Any]) -> list[Any]:
        if inputs["x"].shape[1] % 2:
            raise BadModel("the length is odd")
        return model.as_they_are(inputs)

    found = compare_padded(cast("BucketedModel", model), exact=exact)
    assert (found.proved, "cannot run as they are: the length is odd" in found.reason) == (False, True)


@pytest.mark.parametrize(("factor", "what"), [(np.nan, "NaN or infinite"), (0.0, "the same on all inputs")])
def test_equal_outputs_that_say_nothing_prove_no_padding(factor: float, what: str) -> None:
    model = InNumPy("x", lambda x, mask: factor * (x * mask[..., None]).sum(1) ** 2)
    found = compare_padded(cast("BucketedModel", model))
    assert (found.proved, f"the outputs are {what}" in found.reason) == (False, True)


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("x", lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1)),
        ("x", lambda x, mask: np.where(mask[..., None] > 0, convolved(x), -np.inf).max(1)),
        ("ids", lambda ids, mask: np.sqrt((rows(ids) * mask[..., None]).sum(1))),
    ],
    ids=["mean by the mask", "maximum by the mask", "not a number for some values"],
)
def test_what_ends_at_the_mask_may_be_padded(name: str, compute: Callable[..., Any]) -> None:
    with np.errstate(invalid="ignore"):
        assert compare_padded(cast("BucketedModel", InNumPy(name, compute))).proved


def test_exact_outputs_come_from_a_session_on_all_cores_of_the_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def open_session(_runtime: str, _file: bytes, _name: str, threads: int, cpus: Any, *_: Any) -> Any:
        opened.append((threads, list(cpus)))
        return SimpleNamespace(input_names=["x"], output_names=["y"], run=lambda feed: [feed["x"]])

    monkeypatch.setattr(padded_outputs, "open_session", open_session)
    (tmp_path / "m.onnx").write_bytes(b"model")
    share = SimpleNamespace(cpus=(2, 3, 5), units=2)
    manifest = {"inputs": [{"name": "x"}], "outputs": [{"name": "y"}]}
    model: Any = SimpleNamespace(
        share=share,
        inputs=[TensorSpec("x", "float32", (1,))],
        bundle=SimpleNamespace(manifest=manifest, name="m.fractune"),
    )
    run = padded_outputs.exact_outputs(model, (tmp_path / "m.onnx").read_bytes())
    assert run is not None
    assert run({"x": np.ones(1)}) == [np.ones(1)]
    assert opened == [(2, [2, 3])]
