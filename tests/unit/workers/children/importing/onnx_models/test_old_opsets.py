"""Operators of old opsets mean what they meant: as ONNX Runtime computes them there, or by ONNX's text."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import defs, helper, numpy_helper

from fractune_core.errors import BadModel
from fractune_workers.children.importing.decomposing.decomposition import FIRST, LAST, OLD_FORMS
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported

Array = npt.NDArray[Any]
DRAW = np.random.default_rng(5)


def floats(*shape: int) -> Array:
    return DRAW.normal(0, 1, shape).astype(np.float32)


def scales(*numbers: float) -> Array:
    return np.array([1, 1, *numbers], np.float32)


X, POSITIVE, IMAGE = floats(2, 3, 4, 5), np.abs(floats(2, 3, 4, 5)) + 0.5, floats(1, 2, 4, 6)
SMALL = X[:1, :, :1]
FAR = np.array([-np.inf, -3, 0, 2, np.inf], np.float32)
STATISTICS = [floats(3), floats(3), floats(3), np.abs(floats(3))]
OF_EACH = [floats(3, 4, 5), floats(3, 4, 5), floats(3, 4, 5), np.abs(floats(3, 4, 5))]

Case = tuple[str, list[Array], dict[str, Any]]
"""an operator, its inputs (the first is computed, the others are constants), and its attributes"""

ALIKE: dict[int, list[Case]] = {
    7: [
        ("Add", [X, X[:, :1]], {}),
        ("BatchNormalization", [X, *STATISTICS], {}),
        ("BatchNormalization", [X, *OF_EACH], {"spatial": 0}),
        ("Clip", [FAR], {}),
        ("Clip", [FAR], {"max": 1.5}),
        ("Dropout", [X], {"ratio": 0.5}),
        ("Gemm", [floats(3, 4), floats(4, 5), floats(5)], {}),
        ("Hardmax", [X], {"axis": 2}),
        ("LogSoftmax", [X], {"axis": 2}),
        ("LpPool", [X], {"kernel_shape": [2, 2], "p": 3}),
        ("PRelu", [X, floats(3, 1, 1)], {}),
        ("Pad", [X], {"pads": [0, 0, 1, -2, 0, 0, 0, 1], "value": 1.5}),
        ("ReduceMean", [X], {"axes": [1, 2]}),
        ("ReduceSum", [X], {"axes": [0, 3], "keepdims": 0}),
        ("Slice", [X], {"axes": [1, 3], "starts": [1, -3], "ends": [3, -1]}),
        ("Softmax", [X], {}),
        ("Softmax", [X], {"axis": 0}),
        ("Softmax", [X], {"axis": 3}),
        ("Split", [X], {"axis": 1, "split": [1, 2]}),
        ("Squeeze", [SMALL], {"axes": [0, 2]}),
        ("TopK", [X], {"k": 2}),
        ("Unsqueeze", [X], {"axes": [0, 2]}),
        ("Upsample", [IMAGE], {"mode": "linear", "scales": [1.0, 1.0, 2.0, 1.5]}),
        ("Upsample", [IMAGE], {"scales": [1.0, 1.0, 1.5, 2.5]}),
    ],
    9: [
        ("Hardmax", [X], {}),
        ("OneHot", [np.array([0, 2, -1, 5]), np.array([4]), np.array([0, 1], np.float32)], {}),
        ("Scatter", [X[0, 0], np.array([[0, 1, 2, 3, 0]]), floats(1, 5)], {}),
        ("Upsample", [IMAGE, scales(2, 1.5)], {"mode": "linear"}),
        ("Upsample", [IMAGE, scales(1.3, 1.7)], {}),
    ],
    10: [
        ("Dropout", [X], {}),
        ("MaxPool", [X], {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        ("Resize", [IMAGE, scales(0.6, 1.5)], {}),
        ("Resize", [IMAGE, scales(2.5, 0.4)], {}),
        ("Resize", [IMAGE, scales(0.75, 0.34)], {"mode": "linear"}),
        ("Resize", [IMAGE, scales(2, 1.3)], {"mode": "linear"}),
        ("Slice", [X, np.array([1]), np.array([3]), np.array([2])], {}),
        ("TopK", [X, np.array([2])], {"axis": 1}),
    ],
    12: [
        ("Clip", [FAR, np.array(-1, np.float32), np.array(1, np.float32)], {}),
        ("Dropout", [X], {}),
        ("Hardmax", [X], {"axis": -2}),
        ("LogSoftmax", [X], {"axis": 1}),
        ("Pad", [X, np.array([0, 0, 1, 2, 0, 0, 0, 1])], {"mode": "reflect"}),
        ("ReduceSum", [X], {"axes": [-1]}),
        ("Resize", [IMAGE, np.zeros(0, np.float32), scales(1.5, 2)], {"mode": "linear"}),
        ("Softmax", [X], {"axis": -3}),
        ("Split", [X], {"axis": -1, "split": [1, 4]}),
        ("Squeeze", [SMALL], {"axes": [-2]}),
        ("Unsqueeze", [X], {"axes": [-1]}),
    ],
}
"""by opset"""

_TWO_OUTPUTS = frozenset({"Dropout", "Split", "TopK"})


def model_of(cases: list[Case], opset: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """One model of all cases: together they are compiled once."""
    nodes, inputs, weights, outputs = list[onnx.NodeProto](), dict[str, Array](), dict[str, Array](), list[str]()
    for at, (operator, values, attributes) in enumerate(cases):
        names = [f"{at}.{index}" for index in range(len(values))]
        inputs[names[0]] = values[0]
        weights |= dict(zip(names[1:], values[1:], strict=True))
        made = [f"{at}.y", *([f"{at}.z"] if operator in _TWO_OUTPUTS else [])]
        nodes.append(helper.make_node(operator, names, made, **attributes))
        outputs += made
    return onnx_model(nodes, inputs, weights, opset, outputs), inputs


@pytest.mark.parametrize("opset", ALIKE)
def test_as_by_onnxruntime(opset: int) -> None:
    model, inputs = model_of(ALIKE[opset], opset)
    names = [each.name for each in model.graph.output]
    for name, ours, theirs in zip(names, run_imported(model, inputs), run_by_onnxruntime(model, inputs), strict=True):
        what = f"{ALIKE[opset][int(name.split('.')[0])][::2]} of opset {opset}"
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), what
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=what)


CHANNELS = floats(3)
BY_CHANNEL = CHANNELS.reshape(3, 1, 1)
ROW = floats(5)
MIDDLE = POSITIVE[0, :, :, 0].copy()
BY_TEXT: list[tuple[Case, Array]] = [
    (("Add", [X, MIDDLE], {"broadcast": 1, "axis": 1}), X + MIDDLE[..., None]),
    (("Sub", [X, CHANNELS], {"broadcast": 1, "axis": 1}), X - BY_CHANNEL),
    (("Mul", [X, X[0, 0]], {"broadcast": 1}), X * X[0, 0]),
    (("Div", [X, MIDDLE], {"broadcast": 1, "axis": -3}), X / MIDDLE[..., None]),
    (("Pow", [POSITIVE, MIDDLE], {"broadcast": 1, "axis": 1}), POSITIVE ** MIDDLE[..., None]),
    (("And", [X > 0, X[1, :, :, 0] > 0], {"broadcast": 1, "axis": 1}), (X > 0) & (X[1, :, :, :1] > 0)),
    (("Greater", [X, MIDDLE], {"broadcast": 1, "axis": 1}), np.greater(X, MIDDLE[..., None])),
    (("PRelu", [X, CHANNELS], {}), np.where(X < 0, X * BY_CHANNEL, X)),
    (("PRelu", [X, CHANNELS[:1]], {}), np.where(X < 0, X * CHANNELS[0], X)),
    (("Relu", [X], {"consumed_inputs": [0]}), np.maximum(X, 0)),
    (("Cast", [X], {"to": "INT32"}), X.astype(np.int32)),
    (("Clip", [FAR], {"min": -1.0}), np.maximum(FAR, -1)),
    (("Concat", [X, X], {}), np.concatenate([X, X], 1)),
    (("GlobalLpPool", [X], {"p": 3.0}), (np.abs(X) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)),
    (("Pad", [X], {"paddings": [0, 0, 1, 0, 0, 0, 0, 2]}), np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2)))),
    (("Reshape", [X], {"shape": [2, -1, 0]}), X.reshape(2, -1, 4)),
    (("Selu", [X], {}), np.where(X > 0, 1.0507 * X, 1.0507 * 1.6732 * (np.exp(X) - 1))),
    (
        ("Upsample", [IMAGE], {"height_scale": 2.0, "width_scale": 1.5}),
        IMAGE.repeat(2, 2)[..., np.arange(9) * 2 // 3],
    ),
    (("Gemm", [X[0, 0], np.eye(5, dtype=np.float32), ROW], {"broadcast": 1}), X[0, 0] + ROW),
]
"""Of opset 1, which ONNX Runtime does not run: what its text says"""


def test_as_by_the_text_of_the_first_opset() -> None:
    cases = [case for case, _ in BY_TEXT]
    model, inputs = model_of(cases, 1)
    for (case, right), ours in zip(BY_TEXT, run_imported(model, inputs), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-5, err_msg=str(case[::2]))


_LIST = """
    Abs ArgMax ArgMin AveragePool Ceil Compress Constant Conv ConvTranspose CumSum DepthToSpace DequantizeLinear Elu Erf
    Exp Expand Flatten Floor Gather GatherElements GatherND GreaterOrEqual HardSigmoid Identity InstanceNormalization
    IsNaN LRN LeakyRelu LessOrEqual Log MatMul Max MaxPool MaxUnpool Mean MeanVarianceNormalization Min Mod Neg
    NegativeLogLikelihoodLoss NonMaxSuppression NonZero OneHot QuantizeLinear Reciprocal ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare Relu ScatterElements ScatterND Shape
    Sigmoid Sign Size SoftmaxCrossEntropyLoss SpaceToDepth Sqrt Sum Tanh Transpose Where
"""
SAME = frozenset(_LIST.split())
"""Operators whose later versions add types, or attributes and inputs that change nothing where they are absent"""
WITH_SUBGRAPHS = frozenset({"If", "Loop", "Scan"})
"""They are read in the words of their own opset."""


def test_every_operator_that_has_changed_is_listed() -> None:
    versions: dict[str, set[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain and schema.since_version <= LAST:
            versions.setdefault(schema.name, set()).add(schema.since_version)
    changed = {name for name, found in versions.items() if len(found) > 1 and min(found) < FIRST}
    assert changed == {*OLD_FORMS, *SAME, *WITH_SUBGRAPHS}
    assert not SAME & OLD_FORMS.keys()


@pytest.mark.parametrize(
    ("case", "opset", "words"),
    [
        (("Tile", [SMALL, np.array(2), np.array(1)], {}), 1, r"\(Tile\): its axis is an input, as in opset 1; export"),
        (
            ("GlobalLpPool", [X], {"p": 1.5}),
            1,
            r"\(GlobalLpPool\): p=1.5 is not a whole number; export it with opset 13",
        ),
        (("Cast", [X], {"to": "REAL"}), 1, r"\(Cast\): to='REAL' is not a type of ONNX; export it again"),
    ],
)
def test_a_form_that_is_refused(case: Case, opset: int, words: str) -> None:
    with pytest.raises(BadModel, match=words):
        imported(model_of([case], opset)[0])


def test_a_branch_is_read_in_the_words_of_its_opset() -> None:
    """An `If` that is decided only when the model runs, and one that is not."""

    def branch(operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["x"], [operator], axis=1)
        return helper.make_graph([node], operator, [], [helper.make_tensor_value_info(operator, 1, X.shape)])

    given: Mapping[str, Array] = {"yes": np.array(1, bool), "x": X}
    sides: dict[str, Any] = {"then_branch": branch("Hardmax"), "else_branch": branch("Softmax")}
    for condition in ("yes", "no"):
        model = onnx_model([helper.make_node("If", [condition], ["y"], **sides)], given, opset=11)
        model.graph.initializer.append(numpy_helper.from_array(np.array(0, bool), "no"))
        np.testing.assert_allclose(run_imported(model, given)[0], run_by_onnxruntime(model, given)[0], rtol=1e-5)
