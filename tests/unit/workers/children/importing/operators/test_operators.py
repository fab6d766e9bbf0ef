"""Nodes with strange attributes, types and shapes; reductions; and regions of attention."""

from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fractune_core.errors import BadModel
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.model_file import load_fixed
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported, run_reference
from tests.unit.workers.children.importing.onnx_models.test_decompositions import CASES, model_of
from tests.unit.workers.children.importing.operators.test_packed_weights import product
from tests.unit.workers.children.importing.operators.test_quantization import SCALES, quantized_and_back

NUMBERS = (-(2**63), -(2**31), -3, -1, 0, 1, 2, 3, 16, 2**31, 2**62)
KINDS = (
    TensorProto.FLOAT,
    TensorProto.INT8,
    TensorProto.UINT4,
    TensorProto.BOOL,
    TensorProto.STRING,
    TensorProto.DOUBLE,
)
MODELS = [
    *(model_of(case)[0] for case in CASES),
    product(48)[0],
    quantized_and_back({"s": SCALES, "z": np.array([1, 2, 3], np.uint8)}, axis=0, block_size=0),
]


def change(model: onnx.ModelProto, draw: Random) -> None:
    """Change one attribute, input or weight."""
    node = draw.choice(model.graph.node)
    what = draw.randrange(6)
    if what == 0 and node.attribute:
        attribute = draw.choice(node.attribute)
        if attribute.type == onnx.AttributeProto.INT:
            attribute.i = draw.choice(NUMBERS)
        elif attribute.type == onnx.AttributeProto.INTS:
            attribute.ints[:] = [draw.choice(NUMBERS) for _ in range(draw.randrange(4))]
        else:
            attribute.f = float("nan")
    elif what == 1 and node.input:
        node.input[draw.randrange(len(node.input))] = draw.choice(["", *node.input])
    elif what == 2 and node.input:
        del node.input[draw.randrange(len(node.input)) :]
    elif what == 3 and model.graph.initializer:
        weight = draw.choice(model.graph.initializer)
        shape = [draw.choice((0, 1, 2, 3, 7)) for _ in range(draw.randrange(4))]
        dtype = draw.choice((np.int8, np.uint8, np.int32, np.float32, np.float16))
        weight.CopyFrom(numpy_helper.from_array(np.zeros(shape, dtype), weight.name))
    elif what == 4:
        model.graph.input[0].type.tensor_type.elem_type = draw.choice(KINDS)
    else:
        dims = model.graph.input[0].type.tensor_type.shape.dim
        if dims:
            draw.choice(dims).dim_value = draw.choice((1, 2, 5, 2**20, 2**40))


@pytest.mark.parametrize("seed", range(5))
def test_a_strange_node_ends_in_one_line(seed: int) -> None:
    draw, lines = Random(seed), list[str]()
    for _ in range(40):
        model = onnx.ModelProto()
        model.CopyFrom(draw.choice(MODELS))
        for _ in range(draw.randrange(1, 4)):
            change(model, draw)
        data = model.SerializeToString()
        try:
            load_fixed(data, {}, Limits(len(data)))
        except BadModel as error:
            lines.append(str(error))
    assert [line for line in lines if not line or "\n" in line] == []
    assert lines


CORNERS = np.array(
    [[0, 0, 9, 13], [2, 3, 7.5, 8.1], [5, 5, 4, 4], [-3, -2, 3, 4], [6, 6, 20, 20], [1, 1, 1, 1]], np.float32
)
"""Among them regions that reach over the edges, of no size, and with their corners exchanged"""


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("samples", [0, 2])
def test_regions(opset: int, samples: int) -> None:
    x = np.random.default_rng(3).normal(size=(2, 2, 8, 9)).astype(np.float32)
    given = {"x": x, "corners": CORNERS, "images": np.array([0, 1, 0, 1, 0, 1])}
    modes = ["", "half_pixel", "output_half_pixel"] if opset >= 16 else [""]
    nodes = []
    for mode in modes:
        for scale in (1.0, 0.3):
            node = helper.make_node("RoiAlign", list(given), [f"{mode} {scale}"], output_height=3, output_width=2)
            node.attribute.append(helper.make_attribute("sampling_ratio", samples))
            node.attribute.append(helper.make_attribute("spatial_scale", scale))
            if mode:
                node.attribute.append(helper.make_attribute("coordinate_transformation_mode", mode))
            nodes.append(node)
    model = onnx_model(nodes, given, opset=opset, outputs=[node.output[0] for node in nodes])
    for node, ours, right in zip(nodes, run_imported(model, given), run_by_onnxruntime(model, given), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-5, err_msg=node.output[0])


LARGE = 2**31 - 1
REDUCED = np.array([[7, -3, 100_000, 5], [LARGE, LARGE, -9, 1], [-7, 0, 0, 0]], np.int32)
AXES = {"a": np.array([1])}


def reduction(operator: str, x: npt.NDArray[Any], **attributes: Any) -> Any:
    return onnx_model([helper.make_node(operator, ["x", "a"], ["y"], "it", **attributes)], {"x": x}, AXES)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceL2"])
def test_whole_numbers(operator: str, dtype: Any) -> None:
    x = REDUCED.astype(dtype)
    model = reduction(operator, x, keepdims=0)
    (ours,), (theirs,) = run_imported(model, {"x": x}), run_by_onnxruntime(model, {"x": x})
    assert ours.dtype == dtype
    np.testing.assert_array_equal(ours, theirs)


def test_unsigned_numbers() -> None:
    x = np.abs(REDUCED[:1]).astype(np.uint32)
    for operator in ("ReduceMean", "ReduceL2"):
        model = reduction(operator, x)
        (ours,), (theirs,) = run_imported(model, {"x": x}), run_reference(model, {"x": x})
        assert ours.dtype == np.uint32
        if operator == "ReduceMean":  # the reference's squares wrap around in 32 bits
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert ours.tolist() == [[100_000]]


def test_a_mean_in_a_difference() -> None:
    nodes = [helper.make_node("ReduceMean", ["x", "a"], ["m"]), helper.make_node("Sub", ["x", "m"], ["y"])]
    model = onnx_model(nodes, {"x": REDUCED[2:]}, AXES)
    np.testing.assert_array_equal(run_imported(model, {"x": REDUCED[2:]})[0], [[-6, 1, 1, 1]])


def test_a_mean_of_64_unsigned_bits_is_refused() -> None:
    with pytest.raises(BadModel, match=r"'it' \(ReduceMean\): it averages uint64, which no kernel does; cast it to"):
        imported(reduction("ReduceMean", np.ones((2, 3), np.uint64)))


@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"])
def test_over_no_axis_each_number_is_reduced_alone(operator: str) -> None:
    x = np.array([[2, 0.5, 3]] if "Log" in operator else [[-2, 0, 3]], np.float32)
    model = onnx_model([helper.make_node(operator, ["x"], ["y"], noop_with_empty_axes=1)], {"x": x})
    np.testing.assert_allclose(run_imported(model, {"x": x})[0], run_by_onnxruntime(model, {"x": x})[0], rtol=1e-6)
