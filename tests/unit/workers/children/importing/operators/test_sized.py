"""Sizes and places that are constants: ONNX's numbers where they fit, and one clear line where they do not."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from fractune_core.errors import BadModel
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported, together

Array = npt.NDArray[Any]
X = np.arange(12, dtype=np.float32).reshape(3, 4)
FAR = 2**63 - 1


def model_of(operator: str, constants: dict[str, Array], outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    names = [f"y{at}" for at in range(outputs)]
    return onnx_model([helper.make_node(operator, ["x", *constants], names, "it", **attributes)], {"x": X}, constants)


FITTING: list[tuple[str, dict[str, Array], dict[str, Any]]] = [
    ("TopK", {"k": np.array([4])}, {"outputs": 2}),
    ("Split", {"s": np.array([1, 3])}, {"outputs": 2, "axis": 1}),
    ("Split", {}, {"outputs": 3, "num_outputs": 3}),
    ("Pad", {"p": np.array([0, 3, 0, 2])}, {"mode": "reflect"}),
    ("Pad", {"p": np.array([-1, -1, 1, 2])}, {"mode": "reflect"}),
    ("Pad", {"p": np.array([2, -1, -1, 3])}, {"mode": "wrap"}),
    ("Pad", {"p": np.array([2, -1, -1, 3])}, {"mode": "edge"}),
    ("Pad", {"p": np.array([-1, 2]), "v": np.array(7, np.float32), "a": np.array([-1])}, {}),
    ("Tile", {"r": np.array([1, 2])}, {}),
    *(("Trilu", {"k": np.array(k)}, {"upper": upper}) for k in (-FAR, FAR) for upper in (0, 1)),
]


def test_constants_that_fit() -> None:
    compare([model_of(operator, constants, **others) for operator, constants, others in FITTING])


def compare(models: list[onnx.ModelProto]) -> None:
    model, given = together([(each, {"x": X}) for each in models])
    found, expected = run_imported(model, given), run_by_onnxruntime(model, given)
    for output, ours, theirs in zip(model.graph.output, found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, output.name)


UNFIT: list[tuple[str, dict[str, Array], dict[str, Any], str]] = [
    ("TopK", {"k": np.array([0])}, {"outputs": 2}, "k=0 of axis -1 of [3, 4]; export it with a k from 1 to 4"),
    ("TopK", {"k": np.array([5])}, {"outputs": 2}, "k=5 of axis -1 of [3, 4]; export it with a k from 1 to 4"),
    ("Split", {"s": np.array([1, 2])}, {"outputs": 2, "axis": 1}, "its sizes [1, 2] are not 2 parts of axis 1"),
    (
        "Split",
        {"s": np.array([0, 4])},
        {"outputs": 2, "axis": 1},
        "the model's output 'y0' is empty; export it without",
    ),
    ("Split", {}, {"outputs": 3, "axis": 1, "num_outputs": 3}, "the model's output 'y2' is empty; export it without"),
    ("Split", {"s": np.array([5, -1])}, {"outputs": 2, "axis": 1}, "its sizes [5, -1] have a part of axis 1 of [3, 4]"),
    ("Pad", {"p": np.array([-3, 0, 0, 0])}, {}, "its pads [-3, 0, 0, 0] leave nothing of [3, 4]; export it with"),
    ("Pad", {"p": np.array([-4, 0, 9, 0])}, {"mode": "edge"}, "its pads [-4, 0, 9, 0] leave nothing of [3, 4]"),
    (
        "Pad",
        {"p": np.array([0, 4, 0, 0])},
        {"mode": "reflect"},
        "it reflects 4 numbers into axis 1, which has 4; pad it with 3",
    ),
    (
        "Pad",
        {"p": np.array([2, 0, -1, 0])},
        {"mode": "reflect"},
        "it reflects 2 numbers into axis 0, which has 2; pad it with 1",
    ),
    ("Tile", {"r": np.array([-1, 2])}, {}, "it repeats an axis -1 times; export it with repeats of 1 or more"),
]


@pytest.mark.parametrize(("operator", "constants", "others", "words"), UNFIT)
def test_constants_that_do_not_fit(
    operator: str, constants: dict[str, Array], others: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadModel) as caught:
        imported(model_of(operator, constants, **others))
    assert f"cannot import node 'it' ({operator}): {words}" in str(caught.value)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [((0, 5, 0), "from 0 to 5 by 0;"), ((0.0, np.nan, 1.0), "to nan by 1;"), ((0.0, 1.0, 1e-30), "to 1 by 1e-30;")],
)
def test_a_range_that_never_ends(bounds: tuple[float, ...], words: str) -> None:
    dtype = np.float32 if np.array(bounds).dtype.kind == "f" else np.int64
    nodes = [
        helper.make_node("Range", ["start", "limit", "step"], ["r"], "it"),
        helper.make_node("Cast", ["r"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    constants = {name: np.array(each, dtype) for name, each in zip(("start", "limit", "step"), bounds, strict=True)}
    with pytest.raises(BadModel) as caught:
        imported(onnx_model(nodes, {"x": X}, constants))
    assert "node 'it' (Range): no list has the numbers" in str(caught.value)
    assert words in str(caught.value)


def test_an_empty_part_is_joined_again() -> None:
    models = []
    for sizes in ([4, 0], [0, 4], [0, 1, 0, 3], [0, 0, 4]):
        parts = [f"p{at}" for at in range(len(sizes))]
        nodes = [
            helper.make_node("Split", ["x", "s"], parts, axis=-1),
            helper.make_node("Concat", parts[::-1], ["joined"], axis=1),
            helper.make_node("Relu", ["joined"], ["y"]),
        ]
        models.append(onnx_model(nodes, {"x": X}, {"s": np.array(sizes)}))
    compare(models)
