"""The first table without a GPU: its operators and its verdicts."""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.gpu.table.contest import FAILED, MISSING, RIGHT, WRONG, interleaved, judged_and_timed
from benchmarks.gpu.table.operations import OPERATIONS, Operation, operation_of
from benchmarks.gpu.table.peers import Contestant
from benchmarks.gpu.table.verdicts import Verdict, verdicts, wrong
from benchmarks.gpu.table.whole import halved
from benchmarks.support.transformer import Encoder

PRODUCT = Operation("product", "made up", (3, 5), (5, 7))
WINDOW = Operation("window", "made up", (2, 3, 9, 8), (4, 3, 3, 3), stride=2)


def test_every_operator_says_where_it_is_from() -> None:
    assert len({each.name for each in OPERATIONS}) == len(OPERATIONS) == 20
    for model in ("ResNet-50", "BERT-base", "Llama"):
        assert sum(each.source.find(model) >= 0 for each in OPERATIONS) >= 4
    extents = {each.name: each.y for each in OPERATIONS}
    assert extents["resnet_conv1_7x7"] == (16, 64, 112, 112)
    assert extents["resnet_conv3_3x3_stride2"] == (16, 128, 28, 28)
    assert extents["resnet_conv5_1x1_expand"] == (16, 2048, 7, 7)
    assert extents["bert_outer"] == (3072, 768)


def convolution(x: Any, w: Any, stride: int, pad: int) -> Any:
    """With channels first, number by number, in double precision."""
    padded = np.pad(x.astype("float64"), [(0, 0)] * 2 + [(pad, pad)] * 2)
    extents = [(size + 2 * pad - w.shape[2]) // stride + 1 for size in x.shape[2:]]
    y = np.zeros((x.shape[0], w.shape[0], *extents))
    for n, o, i, j in np.ndindex(*y.shape):
        top, left = stride * i, stride * j
        y[n, o, i, j] = (padded[n, :, top : top + w.shape[2], left : left + w.shape[3]] * w[o]).sum()
    return y


def operands(operation: Operation, dtype: str, *, channels_last: bool) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(dtype) for shape in (operation.x, operation.w))
    return (np.moveaxis(x, 1, -1).copy(), np.moveaxis(w, 1, -1).copy()) if channels_last else (x, w)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_result_is_numpys_in_a_wider_type(*, channels_last: bool) -> None:
    x, w = operands(WINDOW, "float16", channels_last=False)
    expected = convolution(x, w, WINDOW.stride, WINDOW.padding)
    given = operands(WINDOW, "float16", channels_last=channels_last)
    found = WINDOW.result(*given, channels_last=channels_last)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(np.moveaxis(found, -1, 1) if channels_last else found, expected)
    x, w = operands(PRODUCT, "float32", channels_last=False)
    assert PRODUCT.result(x, w, channels_last=False).dtype == np.float64


def test_a_layout_that_no_peer_knows_is_refused() -> None:
    first = [WINDOW.x, WINDOW.w, WINDOW.y]
    assert not WINDOW.is_channels_last(first)
    assert WINDOW.is_channels_last([(n, h, w, c) for n, c, h, w in first])
    with pytest.raises(ValueError, match="in no layout that peers know"):
        WINDOW.is_channels_last([WINDOW.x, (1, 3, 3, 3, 4), WINDOW.y])


def broken() -> None:
    raise RuntimeError("no kernel image")


def test_a_wrong_output_has_no_time() -> None:
    expected = np.ones((2, 2))
    good, off = expected + 1e-4, np.array([[1.0, 1.0], [1.0, 1.1]])
    contestants = {
        "good": Contestant(lambda: None, lambda: good),
        "off": Contestant(lambda: None, lambda: off),
        "unwritten": Contestant(lambda: None, lambda: expected * np.nan),
        "broken": Contestant(broken, lambda: good),
    }
    found = judged_and_timed(contestants, expected, 1e-3, lambda: None)
    assert {name: each["status"] for name, each in found.items()} == {
        "good": RIGHT,
        "off": WRONG,
        "unwritten": WRONG,
        "broken": FAILED,
    }
    assert [name for name, each in found.items() if "run_secs" in each] == ["good"]
    assert found["off"]["max_error"] == pytest.approx(0.1)
    assert "no kernel image" in found["broken"]["cause"]


def test_turns_alternate_and_a_launch_is_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that takes 1 ms for a kernel, and a host that takes 10 us for a launch."""
    now, free_at, launched = 0.0, 0.0, []

    def call(name: str) -> None:
        nonlocal now, free_at
        launched.append(name)
        now += 1e-5
        free_at = max(now, free_at) + 1e-3

    def sync() -> None:
        nonlocal now
        now = max(now, free_at)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    found = interleaved({"a": lambda: call("a"), "b": lambda: call("b")}, sync)
    assert found["a"]["launch_s"] == pytest.approx(1e-5)
    assert found["a"]["run_secs"] == pytest.approx([1e-3] * 9, rel=0.01)
    assert len(found["b"]["choosing_secs"]) == 5
    turns = [name for name, before in zip(launched[6:], ["", *launched[6:]], strict=False) if name != before]
    assert turns[:3] == ["a", "b", "a"]


def timed(secs: float, launch_s: float = 1e-6, spread: float = 0.001) -> dict[str, Any]:
    run_secs = [secs * (1 + spread * (number - 4)) for number in range(9)]
    return {"status": RIGHT, "by": "", "choosing_secs": run_secs[:5], "run_secs": run_secs, "launch_s": launch_s}


def verdict(contestants: dict[str, Any]) -> Verdict:
    (found,) = verdicts(contestants)
    return found


def test_a_row_tells_its_ratio_or_that_it_cannot() -> None:
    slow, fast, peer = timed(3e-4), timed(1e-4), timed(2e-4)
    found = verdict({"fractune": slow, "fractune other": fast, "nvidia": peer})
    assert found.ratio == pytest.approx(0.5)
    assert found.text.startswith("fractune other 100.0 us, 0.500 (")
    tie = dict(peer, run_secs=[secs * (1.01 if at % 2 else 0.99) for at, secs in enumerate(peer["run_secs"])])
    short = verdict({"fractune": timed(1.4e-6), "nvidia": timed(3e-6)})
    for unsure in (verdict({"fractune": tie, "nvidia": peer}), short):
        assert unsure.text.startswith("cannot tell: ")
        assert math.isnan(unsure.ratio)
    assert short.text.endswith("fractune up to 1.5 launches")


def test_a_row_without_two_right_sides_has_no_ratio() -> None:
    off = {"status": WRONG, "max_error": 0.3, "allowed": 0.001}
    absent = {"status": MISSING, "cause": "PyTorch is not installed"}
    sides = {"fractune": off, "nvidia": timed(1e-4)}
    assert verdict(sides).text == "fractune is WRONG by 3.0e-01, 1.0e-03 is allowed"
    assert wrong(sides) == ["fractune is WRONG by 3.0e-01, 1.0e-03 is allowed"]
    found = verdict({"fractune": timed(1e-4), "nvidia": absent})
    assert found.text == "fractune 100.0 us; nvidia is not there (PyTorch is not installed)"
    assert math.isnan(found.ratio)


def test_an_artifact_s_arguments_name_its_operator() -> None:
    channels_last = [["TENSOR", "float16", [each[0], *each[2:], each[1]]] for each in (WINDOW.x, WINDOW.w, WINDOW.y)]
    assert operation_of(channels_last, [PRODUCT, WINDOW]) is WINDOW
    with pytest.raises(ValueError, match="no operator has arguments of"):
        operation_of(channels_last, [PRODUCT])


def test_a_whole_model_is_halved(tmp_path: Path) -> None:
    """All of its numbers, those inside of nodes too; ONNX Runtime still runs it."""
    encoder, path = Encoder(1, 32, 2, 64, 8, 20), tmp_path / "encoder.onnx"
    encoder.save(path)
    feed = {"ids": np.ones((1, 8), "int64"), "mask": np.ones((1, 8), "int64")}

    def output(model: onnx.ModelProto) -> Any:
        return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]

    full, half = output(onnx.load(path)), output(halved(onnx.load(path)))
    assert (full.dtype, half.dtype) == (np.float32, np.float16)
    np.testing.assert_allclose(half, full, atol=0.02 * np.abs(full).max())
