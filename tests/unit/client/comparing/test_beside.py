"""A bundle beside its ONNX file in ONNX Runtime; the bundle's part is NumPy's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fractune.comparing.beside import Beside, accepted_inputs, time_beside, time_peer_at
from fractune_runtime.model import Model
from fractune_runtime.sessions import OnnxRuntimeSession
from tests.support.encoders import write_encoder
from tests.unit.runtime.runtimes.test_sessions import (
    WEIGHT,
    Array,
    write_packed_product,
    write_product,
    write_sum,
)

DATA = {"a": np.arange(256, dtype="uint8").reshape(4, 64)}


def bundle_of(path: Path, inputs: Mapping[str, Array]) -> Model:
    manifest = {"model": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "name": path.name}}
    model = SimpleNamespace(
        bundle=SimpleNamespace(manifest=manifest, name="m.fractune"),
        share=SimpleNamespace(units=1),
        inputs=[SimpleNamespace(name=name) for name in inputs],
        outputs=[SimpleNamespace(name="y")],
    )
    return cast(Model, model)


def test_inputs_that_are_indices_lie_within_their_axes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The numbers of images in a RoiAlign, and rows of a table; ONNX Runtime says nothing of the inputs it refuses."""
    from onnx import helper

    from tests.support.onnx_models import onnx_model

    drawn: dict[str, Array] = {
        "x": np.ones((1, 1, 8, 8), np.float32),
        "corners": np.ones((16, 4), np.float32),
        "images": np.ones(16, np.int64),
        "rows": np.ones(64, np.int32),
    }
    nodes = [
        helper.make_node("RoiAlign", ["x", "corners", "images"], ["regions"], output_height=1, output_width=1),
        helper.make_node("Gather", ["table", "rows"], ["gathered"]),
        helper.make_node("ReduceSum", ["gathered"], ["sum"]),
        helper.make_node("Add", ["regions", "sum"], ["y"]),
    ]
    path = tmp_path / "regions.onnx"
    model = onnx_model(nodes, drawn, {"table": np.ones((12, 3), np.float32)})
    path.write_bytes(model.SerializeToString())
    made = accepted_inputs(path, bundle_of(path, drawn), drawn)
    assert (made["images"] == 0).all()
    assert 2 < made["rows"].max() < 12
    assert made["rows"].dtype == np.int32
    assert capfd.readouterr().err == ""


def timed(path: Path, inputs: Mapping[str, Array], run: Callable[[Mapping[str, Array]], Array], **more: Any) -> Beside:
    """`more` stands in the bundle's manifest."""
    manifest = {"model": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "name": path.name}, **more}
    model = SimpleNamespace(
        bundle=SimpleNamespace(manifest=manifest, name="m.fractune"),
        share=SimpleNamespace(units=1),
        inputs=[SimpleNamespace(name=name) for name in inputs],
        outputs=[SimpleNamespace(name="y")],
        run=lambda feed, _variant="": [run(feed)],
    )
    return time_beside(path, cast(Model, model), inputs, ["cpu:1"], 3)


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


def test_packed_weights_are_compared_with_a_session_that_does_not_round_their_data(tmp_path: Path) -> None:
    path, weight = write_packed_product(tmp_path / "m.onnx", level=4)
    data = np.linspace(0, 1, 3 * 64, dtype="float32").reshape(3, 64) ** 2
    found = timed(path, {"a": data}, lambda feed: (feed["a"].astype("float64") @ weight).astype("float32"))
    assert found.exact is not None
    assert found.outputs_agree
    assert found.max_rel_difference < 1e-5


def test_another_model_has_no_exact_session(tmp_path: Path) -> None:
    inputs = {name: np.ones((2, 3)) for name in ("a", "b")}
    found = timed(write_sum(tmp_path / "m.onnx", 2, 3), inputs, lambda feed: feed["a"] + feed["b"])
    assert (found.exact, found.outputs_agree) == (None, True)


def test_a_constant_of_the_bundle_has_its_shape_in_the_peer_too(tmp_path: Path) -> None:
    path = write_sum(tmp_path / "m.onnx", "rows", "columns", other=("any", "size"))
    described = {"constants": {"b": "1"}, "constant_shapes": {"b": [2, 3]}}
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
        return [each * (1.01 if len(runs) == 2 else 1.0) for each in runs[-1]]

    monkeypatch.setattr(OnnxRuntimeSession, "run", uncertain)
    found = timed(write_product(tmp_path / "m.onnx"), DATA, lambda feed: exact_product(feed) * (1 + apart))
    assert found.own_rel_difference == pytest.approx(0.01)
    assert found.max_rel_difference == pytest.approx(apart)
    assert found.outputs_agree is agrees
