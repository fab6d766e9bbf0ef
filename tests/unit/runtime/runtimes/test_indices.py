"""Inputs that feed indices, by each operator that takes some: those that are drawn lie within their axes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from fractune_runtime.sessions import OnnxRuntimeSession
from tests.support.onnx_models import Array, onnx_model

Node = onnx.helper.make_node
DATA = np.arange(15 * 3, dtype="float32").reshape(15, 3)
ONE_ROW = DATA[:1]
COLUMN, PAIRS = np.zeros((4, 3), "int64"), np.zeros((4, 2), "int64")


def scattered(operator: str, **options: Any) -> list[onnx.NodeProto]:
    return [
        Node("Shape", ["i"], ["shape"]),
        Node("ConstantOfShape", ["shape"], ["updates"]),
        Node(operator, ["data", "i", "updates"], ["y"], **options),
    ]


INDEXED: dict[str, tuple[Sequence[onnx.NodeProto], Array, Mapping[str, Array]]] = {
    "Gather": ([Node("Gather", ["data", "i"], ["y"])], COLUMN, {}),
    "Gather of columns": ([Node("Gather", ["data", "i"], ["y"], axis=1)], COLUMN, {}),
    "GatherElements": ([Node("GatherElements", ["data", "i"], ["y"])], COLUMN, {}),
    "GatherND": ([Node("GatherND", ["data", "i"], ["y"])], PAIRS, {}),
    "ScatterElements": (scattered("ScatterElements"), COLUMN, {}),
    "ScatterElements, added": (scattered("ScatterElements", reduction="add"), COLUMN, {}),
    "ScatterND": (
        [
            Node("Gather", ["data", "zero"], ["row"]),
            Node("Expand", ["row", "four"], ["updates"]),
            Node("ScatterND", ["data", "i", "updates"], ["y"]),
        ],
        COLUMN[:, :1],
        {"zero": np.array([0]), "four": np.array([4, 3])},
    ),
    "OneHot": (
        [Node("OneHot", ["i", "depth", "values"], ["y"])],
        COLUMN,
        {"depth": np.array(3), "values": np.array([0.0, 1.0], "float32")},
    ),
    "RoiAlign": (
        [Node("Reshape", ["data", "image"], ["images"]), Node("RoiAlign", ["images", "corners", "i"], ["y"])],
        np.zeros(4, "int64"),
        {"image": np.array([3, 1, -1, 1]), "corners": np.ones((4, 4), "float32")},
    ),
}
MADE = {
    "Cast": [Node("Cast", ["given"], ["i"], to=onnx.TensorProto.INT64)],
    "Add and Sub": [Node("Add", ["given", "two"], ["up"]), Node("Sub", ["up", "one"], ["i"])],
    "Reshape": [
        Node("Shape", ["given"], ["own"]),
        Node("Reshape", ["given", "flat"], ["r"]),
        Node("Reshape", ["r", "own"], ["i"]),
    ],
    "Concat and Slice": [
        Node("Shape", ["given"], ["own"]),
        Node("Gather", ["own", "nothing"], ["rows"]),
        Node("Concat", ["given", "given"], ["c"], axis=0),
        Node("Slice", ["c", "nothing", "rows"], ["i"]),
    ],
}
NUMBERS: dict[str, Array] = {
    "one": np.array(1),
    "two": np.array(2),
    "flat": np.array([-1]),
    "nothing": np.array([0]),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("operator", INDEXED)
def test_integers_that_become_indices_lie_within_their_axes(operator: str, made: str) -> None:
    nodes, like, weights = INDEXED[operator]
    given = like.astype("int32" if made == "Cast" else "int64")
    model = onnx_model([*MADE[made], *nodes], {"given": given}, {"data": DATA, **NUMBERS, **weights})
    session = OnnxRuntimeSession(model.SerializeToString(), 1)
    feed = session.random_feed({})
    assert feed["given"].dtype == given.dtype
    assert feed["given"].any() or feed["given"].size == 1
    (output,) = session.run(feed)
    assert np.isfinite(output).all()


@pytest.mark.parametrize("operator", ["Gather", "GatherElements", "ScatterElements", "ScatterND", "RoiAlign"])
def test_the_one_row_is_row_0(operator: str) -> None:
    nodes, given, weights = INDEXED[operator]
    data = DATA[:5] if operator == "RoiAlign" else ONE_ROW
    one = {**weights, "image": np.array([1, 1, -1, 1])} if operator == "RoiAlign" else weights
    model = onnx_model(nodes, {"i": given}, {"data": data, **one})
    session = OnnxRuntimeSession(model.SerializeToString(), 1)
    feed = session.random_feed({})
    assert not feed["i"].any()
    session.run(feed)


def test_several_inputs_have_ranges_of_their_own() -> None:
    """Words, kinds of words, and the edges of a graph: their sources and targets have axes of different lengths."""
    nodes = [
        Node("Gather", ["words", "ids"], ["a"]),
        Node("Gather", ["kinds", "types"], ["b"]),
        Node("Split", ["edges"], ["from", "to"], axis=0, num_outputs=2),
        Node("Gather", ["kinds", "from"], ["c"]),
        Node("Gather", ["words", "to"], ["d"]),
        Node("Concat", ["c", "d"], ["e"], axis=-1),
        Node("ReduceSum", ["a"], ["s"]),
        Node("ReduceSum", ["b"], ["t"]),
        Node("Sum", ["s", "t"], ["u"]),
        Node("Add", ["e", "u"], ["y"]),
    ]
    inputs = {name: np.zeros((1, 64), "int64") for name in ("ids", "types")} | {"edges": np.zeros((2, 20), "int64")}
    weights = {"words": np.ones((300, 4), "float32"), "kinds": np.ones((2, 4), "float32")}
    feed = OnnxRuntimeSession(onnx_model(nodes, inputs, weights).SerializeToString(), 1).random_feed({})
    assert 50 < feed["ids"].max() < 100
    assert feed["types"].max() == feed["edges"].max() == 1
