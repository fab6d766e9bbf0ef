"""What padding is found to change, for models in NumPy that stand in for a bundle's."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import fractune
from fractune.comparing import beside, padded_outputs
from fractune.comparing.beside import Contenders
from fractune.comparing.padded_outputs import compare_padded, find_largest, gaps, near, part_of_gap, time_between_shapes
from fractune_core.errors import BadModel
from fractune_core.files.buckets import OpenAxes
from fractune_core.files.compared import Compared, Runtime, Timed
from fractune_runtime import sessions
from fractune_runtime.bucketed_model import BucketedModel
from fractune_runtime.tvm_runtime.tensors import TensorSpec
from tests.support.encoders import inputs_of
from tests.support.real_bundle import ENCODER, ENCODER_SHAPES

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


@pytest.mark.parametrize(
    ("bucket", "found"),
    [
        (0, [("batch", 1), ("length", 1)]),
        (1, [("batch", 1), ("length", 17)]),
        (2, [("batch", 3), ("length", 1)]),
        (3, [("batch", 3), ("length", 17)]),
    ],
)
def test_smaller_sizes_that_run_padded_in_a_bucket(bucket: int, found: list[tuple[str, int]]) -> None:
    sizes = [(2, 16), (2, 32), (4, 16), (4, 32)]
    assert list(gaps([{"batch": batch, "length": length} for batch, length in sizes], bucket)) == found


def test_an_axis_without_smaller_sizes_is_left_out() -> None:
    assert list(gaps([{"batch": 1, "length": 1}, {"batch": 1, "length": 2}], 1)) == []
    assert list(gaps([{"batch": 1, "length": 1}, {"batch": 1, "length": 3}], 1)) == [("length", 2)]


@pytest.mark.parametrize("guess", [1, 30, 60])
@pytest.mark.parametrize("largest", [1, 40, 63])
def test_the_largest_size_is_found_below_the_guess(largest: int, guess: int) -> None:
    asked: list[int] = []

    def holds(size: int) -> bool:
        asked.append(size)
        return size <= largest

    find_largest(1, 64, guess, holds)
    held = max((size for size in asked if size <= largest), default=1)
    assert held == guess or largest - held <= 7 or guess == 1
    assert len(asked) <= 5
    assert asked[:1] == ([] if guess == 1 else [guess])


@pytest.mark.parametrize(
    ("size", "sizes"), [(9, [9, 10, 11, 12]), (10, [9, 10, 11, 12]), (12, [9, 10, 11, 12]), (15, [12, 13, 14, 15])]
)
def test_sizes_near_one_take_turns_with_it(size: int, sizes: list[int]) -> None:
    assert list(near(size, 9, 16)) == sizes
    assert list(near(9, 9, 11)) == [9, 10]


def at_sizes(padded_s: float, runtime_s: float, ratio: tuple[float, float, float] = (2.0, 1.9, 2.1)) -> Compared:
    return Compared({"fractune": Timed(padded_s, padded_s), "onnxruntime": Timed(runtime_s, runtime_s, ratio, ratio)})


@pytest.mark.parametrize(("smallest_s", "whole_s", "part"), [(1.0, 3.0, 0.5), (1.0, 2.0, 1.0), (1.0, 0.5, 1.0)])
def test_where_a_runtime_should_be_as_slow_as_a_padded_run(smallest_s: float, whole_s: float, part: float) -> None:
    assert part_of_gap(at_sizes(2.0, smallest_s), at_sizes(2.0, whole_s)) == part


def simulated(monkeypatch: pytest.MonkeyPatch, wins: list[bool]) -> list[list[str]]:
    """Contests are simulated: ONNX Runtime wins some, OpenVINO none. Returns the runtimes that they were asked for."""
    asked: list[list[str]] = []

    def compare(_model: Any, requests: Any, _file: Any, names: list[str]) -> tuple[Compared, dict[str, Runtime]]:
        assert len({inputs["ids"].shape[1] for inputs in requests}) == 4
        won = {"onnxruntime": wins[len(asked)], "openvino": False}
        asked.append(list(names))
        ratios = {name: (2.0, 1.9, 2.1) if won[name] else (0.9, 0.8, 0.95) for name in names}
        times = {name: Timed(1.0, 1.0, ratio, ratio) for name, ratio in ratios.items()}
        return Compared({"fractune": Timed(1.0, 1.0), **times}), {name: Runtime("1", {}) for name in names}

    monkeypatch.setattr(padded_outputs, "time_beside_runtimes", compare)
    return asked


@pytest.mark.parametrize(
    ("wins", "sizes"),
    [([False], [9]), ([True, False, False, True, False], [9, 15, 12, 10, 11]), ([True, True], [9, 15])],
)
def test_a_runtime_that_loses_at_the_smallest_size_is_timed_at_no_other(
    encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wins: list[bool], sizes: list[int]
) -> None:
    files = [encoders / f"{ENCODER}-{batch}x{length}.fractune" for batch, length in ENCODER_SHAPES[ENCODER]]
    model = fractune.load(fractune.join(files, out=tmp_path / "joined.fractune"))
    assert isinstance(model, BucketedModel)
    asked = simulated(monkeypatch, wins)
    file = Contenders(b"", is_quantized=False, exact=True, repeats=6)
    exact = Compared({name: Timed(1.0, 1.0) for name in ("fractune", "onnxruntime", "openvino")})
    found, used = time_between_shapes(model, 1, file, exact)
    assert [each.sizes for each in found] == [{"batch": 1, "length": size} for size in sizes]
    assert asked == [["onnxruntime", "openvino"], *[["onnxruntime"]] * (len(sizes) - 1)]
    assert used.keys() == {"onnxruntime", "openvino"}


def test_every_request_of_a_contest_has_another_size_than_the_one_before(
    encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [encoders / f"{ENCODER}-{batch}x{length}.fractune" for batch, length in ENCODER_SHAPES[ENCODER]]
    model = fractune.load(fractune.join(files, out=tmp_path / "joined.fractune"), runtimes=False)
    opened, lengths = sessions.open_session, list[int]()

    def open_session(*given: Any) -> Any:
        session = opened(*given)
        run = session.run

        def noted(feed: dict[str, Any]) -> Any:
            lengths.append(feed["ids"].shape[1])
            return run(feed)

        monkeypatch.setattr(session, "run", noted)
        return session

    monkeypatch.setattr(beside, "open_session", open_session)
    file = Contenders((encoders / f"{ENCODER}.onnx").read_bytes(), is_quantized=False, exact=True, repeats=2)
    requests = [inputs_of(length) for length in (9, 10, 11)]
    compared, _ = beside.time_beside_runtimes(model, requests, file, ["onnxruntime"])
    assert compared.times.keys() == {"fractune", "onnxruntime"}
    assert lengths[:3] == [9, 10, 11]  # whose outputs are compared
    assert all(one != other for one, other in pairwise(lengths[3:]))
    assert set(lengths[3:]) == {9, 10, 11}
