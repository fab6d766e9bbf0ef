"""Models that the benchmarks make: from weights of a published one, or with random weights."""

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from benchmarks.support.transformer import Encoder


def save_transformer(_: Path, path: Path) -> None:
    """Write a float32 encoder with random weights."""
    Encoder().save(path)


def save_dynamic_minilm(source: Path, path: Path) -> None:
    """Write MiniLM as model hubs offer it for CPUs: activations are quantized while the model runs, weights are int8 by
    column.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    fold_scaled_weights(model)
    plain = path.with_suffix(".float32")
    onnx.save(model, plain)
    quantize_dynamic(plain, path, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul"])
    plain.unlink()


def save_with_weights(source: Path, path: Path) -> None:
    """Write a model that computes its weights, each a tensor of one number, with these weights in its file."""
    model = onnx.load(source)
    graph = model.graph
    shapes = {tensor.name: tensor for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type == "ConstantOfShape":
            number = numpy_helper.to_array(node.attribute[0].t)
            weight = np.broadcast_to(number, numpy_helper.to_array(shapes[node.input[0]]))
            graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(weight), node.output[0]))
            graph.node.remove(node)
    onnx.save(model, path)


def fold_scaled_weights(model: ModelProto) -> None:
    """Replace each `weight * scale`, an int8 weight that is cast and multiplied, by its float32 weight."""
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    casts = {node.output[0]: node for node in graph.node if node.op_type == "Cast" and node.input[0] in weights}
    for node in list(graph.node):
        if node.op_type == "Mul" and node.input[0] in casts and node.input[1] in weights:
            cast = casts[node.input[0]]
            whole, scale = (weights[name] for name in (cast.input[0], node.input[1]))
            folded = numpy_helper.to_array(whole).astype("float32") * numpy_helper.to_array(scale)
            graph.initializer.append(numpy_helper.from_array(folded, node.output[0]))
            for tensor in (whole, scale):
                graph.initializer.remove(tensor)
            for each in (node, cast):
                graph.node.remove(each)
