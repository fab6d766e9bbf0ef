"""Nodes with strange attributes, types and shapes end in a module, or in one clear line."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from fractune_core.errors import BadModel
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.model_file import load_fixed
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


@pytest.mark.parametrize("seed", range(8))
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
