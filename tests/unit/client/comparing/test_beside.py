"""A bundle beside its ONNX file in ONNX Runtime; the bundle's part is NumPy's."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

import fractune
from fractune.comparing.beside import (
    Beside,
    Contenders,
    accepted_inputs,
    time_beside,
    time_beside_runtimes,
    time_peer_at,
)
from fractune.errors import BadBundle
from fractune_core.analysis.slowdown_ci import Slowdown
from fractune_core.errors import BadRequest
from fractune_runtime.model import Model
from fractune_runtime.sessions import OnnxRuntimeSession
from tests.support.encoders import write_encoder
from tests.support.onnx_models import onnx_model
from tests.unit.runtime.runtimes.test_sessions import WEIGHT, Array, write_packed_product, write_product, write_sum

Node = onnx.helper.make_node
DATA = {"a": np.arange(256, dtype="uint8").reshape(4, 64)}


def bundle_of(path: Path, inputs: Mapping[str, Array]) -> Model:
    manifest = {
        "model": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "name": path.name},
        "inputs": [{"name": name} for name in inputs],
        "outputs": [{"name": "y"}],
    }
    model = SimpleNamespace(
        bundle=SimpleNamespace(manifest=manifest, name="m.fractune"),
        share=SimpleNamespace(units=1),
        inputs=[SimpleNamespace(name=name) for name in inputs],
        outputs=[SimpleNamespace(name="y")],
    )
    return cast(Model, model)


def test_inputs_that_are_indices_lie_within_their_axes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The numbers of images in a RoiAlign, and rows of a table; ONNX Runtime says nothing of the inputs it refuses."""
    drawn: dict[str, Array] = {
        "x": np.ones((1, 1, 8, 8), np.float32),
        "corners": np.ones((16, 4), np.float32),
        "images": np.ones(16, np.int64),
        "rows": np.ones(64, np.int32),
    }
    nodes = [
        Node("RoiAlign", ["x", "corners", "images"], ["regions"], output_height=1, output_width=1),
        Node("Gather", ["table", "rows"], ["gathered"]),
        Node("ReduceSum", ["gathered"], ["sum"]),
        Node("Add", ["regions", "sum"], ["y"]),
    ]
    path = tmp_path / "regions.onnx"
    model = onnx_model(nodes, drawn, {"table": np.ones((12, 3), np.float32)})
    path.write_bytes(model.SerializeToString())
    made = accepted_inputs(path, bundle_of(path, drawn), drawn)
    assert (made["images"] == 0).all()
    assert 2 < made["rows"].max() < 12
    assert made["rows"].dtype == np.int32
    assert capfd.readouterr().err == ""


def test_a_model_that_takes_no_random_inputs_asks_for_inputs(tmp_path: Path) -> None:
    """A row by a number that is not an integer, beyond a table of one row."""
    drawn: dict[str, Array] = {"x": np.ones(16, np.float32)}
    nodes = [
        Node("Mul", ["x", "many"], ["rows"]),
        Node("Cast", ["rows"], ["places"], to=onnx.TensorProto.INT64),
        Node("Gather", ["table", "places"], ["y"]),
    ]
    path = tmp_path / "m.onnx"
    weights = {"table": np.ones((1, 3), np.float32), "many": np.full(1, 1000, np.float32)}
    onnx.save(onnx_model(nodes, drawn, weights), path)
    text = r"ONNX Runtime cannot run it .*give inputs of your own by 'fractune run BUNDLE --inputs FILE\.npz --compare"
    with pytest.raises(BadRequest, match=text):
        accepted_inputs(path, bundle_of(path, drawn), drawn)


def timed(
    path: Path,
    inputs: Mapping[str, Array],
    run: Callable[[Mapping[str, Array]], Array],
    variant: str = "cpu:1",
    **more: Any,
) -> Beside:
    """`more` stands in the bundle's manifest."""
    model: Any = bundle_of(path, inputs)
    model.bundle.manifest |= more
    model.run = lambda feed, _variant="": [run(feed)]
    return time_beside(path, cast(Model, model), inputs, [variant], 3)


def test_one_session_is_timed_at_several_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, lengths = [], []
    make, run = OnnxRuntimeSession.__init__, OnnxRuntimeSession.run

    def noted_make(self: OnnxRuntimeSession, *args: Any, **options: Any) -> None:
        sessions.append(self)
        make(self, *args, **options)

    def noted_run(self: OnnxRuntimeSession, feed: Mapping[str, Array]) -> list[Array]:
        lengths.append({array.shape for array in feed.values()})
        return run(self, feed)

    monkeypatch.setattr(OnnxRuntimeSession, "__init__", noted_make)
    monkeypatch.setattr(OnnxRuntimeSession, "run", noted_run)
    shapes = [{name: [1, length] for name in ("ids", "mask")} for length in (4, 9)]
    found = time_peer_at(write_encoder(tmp_path / "m.onnx"), 1, shapes, 3)
    assert [len(secs) for secs in found] == [3, 3]
    assert all(secs > 0 for each in found for secs in each)
    assert len(sessions) == 1
    assert lengths[0] == {(1, 4)}
    assert {(1, 4), (1, 9)} == set.union(*lengths)


def exact_product(feed: Mapping[str, Array]) -> Array:
    product: Array = feed["a"].astype("int32") @ WEIGHT.astype("int32")
    return product


def test_a_quantized_model_is_compared_with_the_exact_session_and_timed_beside_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, exact, exact_ones = OnnxRuntimeSession.run, OnnxRuntimeSession.exact, list[OnnxRuntimeSession]()

    def noted(*args: Any, **options: Any) -> OnnxRuntimeSession:
        exact_ones.append(exact(*args, **options))
        return exact_ones[-1]

    def saturated(self: OnnxRuntimeSession, *args: Any) -> list[Array]:
        outputs = run(self, *args)
        return outputs if self in exact_ones else [np.minimum(each, 32767) for each in outputs]

    monkeypatch.setattr(OnnxRuntimeSession, "exact", noted)
    monkeypatch.setattr(OnnxRuntimeSession, "run", saturated)
    found = timed(write_product(tmp_path / "m.onnx"), DATA, exact_product)
    assert found.exact is not None
    assert len(found.theirs.loop_secs) == len(found.exact.loop_secs) == len(found.ours["cpu:1"].loop_secs) == 3
    assert (found.outputs_agree, found.max_abs_difference) == (True, 0.0)


def test_a_bundle_that_the_peer_serves_is_timed_beside_it(tmp_path: Path) -> None:
    found = timed(write_product(tmp_path / "m.onnx"), DATA, exact_product, variant="onnxruntime")
    assert len(found.ours["onnxruntime"].loop_secs) == len(found.theirs.loop_secs) == 3


def test_a_bundle_may_round_the_data_of_packed_weights_or_not(tmp_path: Path) -> None:
    """Where the model allows it. ONNX Runtime rounds; this bundle does not, as on a processor without instructions."""
    path, weight = write_packed_product(tmp_path / "m.onnx", level=4)
    data = np.linspace(0, 1, 3 * 64, dtype="float32").reshape(3, 64) ** 2
    found = timed(path, {"a": data}, lambda feed: (feed["a"].astype("float64") @ weight).astype("float32"))
    assert found.exact is not None
    assert found.outputs_agree
    assert 1e-5 < found.max_rel_difference < 1e-2


def test_another_model_has_no_exact_session(tmp_path: Path) -> None:
    inputs = {name: np.ones((2, 3)) for name in ("a", "b")}
    found = timed(write_sum(tmp_path / "m.onnx", 2, 3), inputs, lambda feed: feed["a"] + feed["b"])
    assert (found.exact, found.outputs_agree) == (None, True)


def test_a_constant_of_the_bundle_has_its_shape_in_the_peer_too(tmp_path: Path) -> None:
    path = write_sum(tmp_path / "m.onnx", "rows", "columns", other=("any", "size"))
    described: dict[str, Any] = {"constants": {"b": "1"}, "constant_shapes": {"b": [2, 3]}}
    found = timed(path, {"a": np.ones((2, 3))}, lambda feed: feed["a"] + 1, **described)
    assert found.outputs_agree


@pytest.mark.parametrize(("apart", "agrees"), [(0.02, True), (0.05, False)])
def test_outputs_of_a_quantized_model_agree_as_far_as_the_peer_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: float, *, agrees: bool
) -> None:
    run = OnnxRuntimeSession.run
    runs: list[list[Array]] = []

    def uncertain(self: OnnxRuntimeSession, *args: Any) -> list[Array]:
        runs.append(run(self, *args))
        return [each * (1.01 if len(runs) == 3 else 1.0) for each in runs[-1]]

    monkeypatch.setattr(OnnxRuntimeSession, "run", uncertain)
    path = write_product(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.node[0].output[0] = "whole"
    model.graph.node.append(onnx.helper.make_node("Cast", ["whole"], ["y"], to=onnx.TensorProto.FLOAT))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    onnx.save(model, path)
    found = timed(path, DATA, lambda feed: exact_product(feed).astype("float32") * np.float32(1 + apart))
    assert found.own_rel_difference == pytest.approx(0.01, rel=1e-5)
    assert found.max_rel_difference == pytest.approx(apart, rel=1e-5)
    assert found.outputs_agree is agrees


ROWS, DEPTH, COLUMNS = 64, 8, 48


def small_difference(path: Path) -> tuple[Array, Array]:
    """`x @ a - x @ b`, which is 1e-5 of both products; the file, and both weights."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((DEPTH, COLUMNS)).astype("float32")
    b = (a + 1e-5 * rng.standard_normal(a.shape)).astype("float32")
    nodes = [Node("MatMul", ["x", "a"], ["p"]), Node("MatMul", ["x", "b"], ["q"]), Node("Sub", ["p", "q"], ["y"])]
    onnx.save(onnx_model(nodes, {"x": np.zeros((ROWS, DEPTH), "float32")}, {"a": a, "b": b}), path)
    return a, b


def summed_backwards(x: Array, weight: Array) -> Array:
    """A product whose sums have another order than other implementations'."""
    total = np.zeros((len(x), weight.shape[1]), "float32")
    for place in reversed(range(len(weight))):
        total += x[:, place : place + 1] * weight[place]
    return total


def one_weight_off(weight: Array) -> Array:
    off = weight.copy()
    off[3, 16] *= np.float32(1.001)
    return off


def all_weights_off(weight: Array) -> Array:
    """As a kernel that computes with half precision in between."""
    signs = np.random.default_rng(1).choice([-1, 1], weight.shape)
    return (weight * (1 + 1e-3 * signs)).astype("float32")


WRONGS = [(lambda weight: weight, True), (one_weight_off, False), (all_weights_off, False)]


@pytest.mark.parametrize(("change", "agrees"), WRONGS, ids=["right", "one weight off", "all weights off"])
def test_a_small_difference_of_large_numbers_is_judged_by_their_magnitude(
    tmp_path: Path, change: Callable[[Array], Array], *, agrees: bool
) -> None:
    a, b = small_difference(tmp_path / "m.onnx")
    x = np.random.default_rng(2).uniform(0.1, 1, (ROWS, DEPTH)).astype("float32")

    def run(feed: Mapping[str, Array]) -> Array:
        return summed_backwards(feed["x"], change(a)) - summed_backwards(feed["x"], b)

    found = timed(tmp_path / "m.onnx", {"x": x}, run)
    assert found.outputs_agree is agrees
    assert found.max_rel_difference > 5e-3
    assert found.own_rel_difference > 1e-2
    model = cast(Any, bundle_of(tmp_path / "m.onnx", {"x": x}))
    model.run, model.share.cpus = lambda feed: [run(feed)], sorted(os.sched_getaffinity(0))
    model.inputs[0].shape = x.shape
    model.bundle.manifest |= {"inputs": [{"name": "x"}], "outputs": [{"name": "y"}]}
    file = Contenders((tmp_path / "m.onnx").read_bytes(), is_quantized=False, exact=True, repeats=2)
    compared, runtimes = time_beside_runtimes(model, [{"x": x}], file, ["onnxruntime"])
    assert runtimes.keys() == ({"onnxruntime"} if agrees else set())
    assert agrees or "rounding does not explain it" in compared.refused["onnxruntime"]


@pytest.mark.parametrize("units", [1, 2])
def test_onnx_runtime_is_timed_as_programs_have_it_where_its_threads_would_spin(tmp_path: Path, units: int) -> None:
    a, b = small_difference(tmp_path / "m.onnx")
    x = np.random.default_rng(2).uniform(0.1, 1, (ROWS, DEPTH)).astype("float32")
    model = cast(Any, bundle_of(tmp_path / "m.onnx", {"x": x}))
    model.run, model.share.cpus = lambda feed: [feed["x"] @ a - feed["x"] @ b], sorted(os.sched_getaffinity(0))
    model.share.units, model.inputs[0].shape = min(units, len(model.share.cpus)), x.shape
    model.bundle.manifest |= {"inputs": [{"name": "x"}], "outputs": [{"name": "y"}]}
    file = Contenders((tmp_path / "m.onnx").read_bytes(), is_quantized=False, exact=True, repeats=7)
    compared, _ = time_beside_runtimes(model, [{"x": x}], file, ["onnxruntime"])
    found, disturbed = (each.as_programs_have("onnxruntime").loop for each in (compared, compared.beside(0.5, 1)))
    assert (compared.by_default is None) is (model.share.units == 1)
    assert found is not None
    assert disturbed is not None
    assert disturbed[1] == pytest.approx(found[1] / 2)


def test_the_tail_of_a_sigmoid_is_judged_by_the_rounding_of_a_sigmoid(tmp_path: Path) -> None:
    """A detector's scores on noise: 1e-5 at most, which ONNX Runtime computes to some 1e-7."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((32, 16)).astype("float32"), (0.01 * rng.standard_normal((16, 64))).astype("float32")
    nodes = [Node("MatMul", ["x", "w"], ["p"]), Node("Add", ["p", "b"], ["s"]), Node("Sigmoid", ["s"], ["y"])]
    path = tmp_path / "m.onnx"
    onnx.save(onnx_model(nodes, {"x": x}, {"w": w, "b": np.full(1, -11.5, "float32")}), path)

    def run(feed: Mapping[str, Array]) -> Array:
        scores: Array = 1 / (1 + np.exp(11.5 - feed["x"].astype("float64") @ w))
        return scores.astype("float32")

    found = timed(path, {"x": x}, run)
    assert found.outputs_agree
    assert found.max_rel_difference > 1e-3
    assert not timed(path, {"x": x}, lambda feed: run(feed) * np.float32(1.3)).outputs_agree


def test_an_agreement_of_outputs_that_never_change_says_nothing(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    path = tmp_path / "m.onnx"
    for factor, unproved in (
        (np.array(0, np.float32), "the same on all inputs that were tried"),
        (np.array(2, np.float32), ""),
    ):
        path.write_bytes(onnx_model([Node("Mul", ["x", "f"], ["y"])], {"x": x}, {"f": factor}).SerializeToString())
        found = timed(path, {"x": x}, lambda feed, factor=factor: factor * feed["x"])  # type: ignore[misc]
        assert (found.outputs_agree, found.unproved) == (True, unproved)


def test_a_threshold_is_drawn_such_that_outputs_say_something(tmp_path: Path) -> None:
    drawn: dict[str, Array] = {"x": np.ones(8, np.float32), "rate": np.ones((), np.float32)}
    nodes = [Node("Sub", ["rate", "least"], ["d"]), Node("Sqrt", ["d"], ["s"]), Node("Mul", ["x", "s"], ["y"])]
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx_model(nodes, drawn, {"least": np.array(12000, np.float32)}).SerializeToString())
    assert accepted_inputs(path, bundle_of(path, drawn), drawn)["rate"] == 16000


def test_a_bundle_against_itself_agrees_and_is_timed_in_pairs(small: Any) -> None:
    found = fractune.compare(small.bundle, str(small.bundle), share="cpu:1", repeats=6)
    assert found.max_rel_difference == found.max_abs_difference == 0.0
    assert len(found.new_secs) == len(found.last_secs) == 6
    assert len(found.new_paced_secs) == len(found.last_paced_secs) == 6
    assert all(secs > 0 for secs in (*found.new_secs, *found.last_secs, *found.new_paced_secs, *found.last_paced_secs))
    for slowdown in (found.slowdown, found.paced_slowdown):
        assert slowdown.low <= slowdown.median <= slowdown.high
    assert not found.is_slower(tolerance=10.0)
    assert found.new == found.last
    assert found.new.reason


@pytest.mark.parametrize(
    ("median", "low", "high", "tolerance", "is_slower"),
    [
        (0.10, 0.08, 0.12, 0.03, True),
        (0.10, 0.08, 0.12, 0.15, False),
        (0.10, -0.2, 0.40, 0.03, False),
        (-0.2, -0.3, -0.1, 0.0, False),
    ],
)
def test_slower_is_beyond_the_noise_and_the_tolerance(
    small: Any, median: float, low: float, high: float, tolerance: float, *, is_slower: bool
) -> None:
    choice = fractune.load(small.bundle, share="cpu:1").choice
    in_loop, paced = Slowdown(median, low, high), Slowdown(0.0, -1.0, 1.0)
    found = fractune.Comparison(in_loop, (1.0,), (1.0,), paced, (1.0,), (1.0,), 0.0, 0.0, choice, choice)
    assert found.is_slower(tolerance) is is_slower


def test_what_cannot_be_compared_is_named(small: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="repeats is 2"):
        fractune.compare(small.bundle, small.bundle, repeats=2)
    with pytest.raises(BadBundle, match=r"none\.fractune: no such file"):
        fractune.compare(small.bundle, tmp_path / "none.fractune")
