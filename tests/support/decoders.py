"""A decoder with a cache as exporters write it: past and present of each layer, and a mask of all positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, WORDS = 32, 2, 50


def write_decoder(
    path: Path, *, layers: int = 2, total: str = "total", width: int = WIDTH, weights_beside: bool = False
) -> Path:
    """The axes are `b`, `s`, `past` and `total`, which the mask has; attention adds the mask of `past + s` scores.

    Another `total` is a name or a sum for the same axis.
    """
    side = width // HEADS
    drawn = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(np.array(value, kind), name)
        for name, value, kind in (
            *(("split", [0, 0, HEADS, side], np.int64), ("merge", [0, 0, width], np.int64)),
            *(("axes", [1, 2], np.int64), ("last", [-1], np.int64)),
            *(("two", 2.0, np.float32), ("small", 1e-6, np.float32), ("one", 1.0, np.float32)),
            *(("scale", side**-0.5, np.float32), ("big", -1e9, np.float32)),
        )
    ]
    nodes: list[Any] = []

    def weight(name: str, *shape: int) -> str:
        array = (drawn.standard_normal(shape) * width**-0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(array, name))
        return name

    def add(kind: str, inputs: str, output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs.split(), [output], **attributes))
        return output

    def dense(x: str, name: str, rows: int, columns: int) -> str:
        return add("MatMul", f"{x} {weight(name, rows, columns)}", f"{name}_y")

    def normal(x: str, name: str) -> str:
        squares = add("Pow", f"{x} two", f"{name}sq")
        mean = add("ReduceMean", f"{squares} last", f"{name}mean", keepdims=1)
        root = add("Sqrt", add("Add", f"{mean} small", f"{name}more"), f"{name}root")
        return add("Mul", f"{add('Div', f'{x} {root}', f'{name}unit')} {weight(f'{name}gain', width)}", f"{name}n")

    def value(name: str, kind: int, *dims: int | str) -> Any:
        return helper.make_tensor_value_info(name, kind, dims)

    inputs = [value("input_ids", TensorProto.INT64, "b", "s"), value("attention_mask", TensorProto.INT64, "b", total)]
    outputs = [value("logits", TensorProto.FLOAT, "b", "s", WORDS)]
    x = add("Gather", f"{weight('words', WORDS, width)} input_ids", "x")
    seen = add("Cast", "attention_mask", "seen", to=1)
    low = add("Mul", f"{add('Sub', f'one {seen}', 'hidden')} big", "low")
    mask = add("Unsqueeze", f"{low} axes", "mask")
    for layer in range(layers):
        at = f"l{layer}_"
        y = normal(x, f"{at}a")
        for part in "qkv":
            heads = add("Reshape", f"{dense(y, at + part, width, width)} split", f"{at}{part}4")
            add("Transpose", heads, f"{at}{part}t", perm=[0, 2, 1, 3])
        for part in "kv":
            inputs.append(value(f"past_{part}.{layer}", TensorProto.FLOAT, "b", HEADS, "past", side))
            add("Concat", f"past_{part}.{layer} {at}{part}t", f"present_{part}.{layer}", axis=2)
            outputs.append(value(f"present_{part}.{layer}", TensorProto.FLOAT, "b", HEADS, total, side))
        keys = add("Transpose", f"present_k.{layer}", f"{at}kT", perm=[0, 1, 3, 2])
        scores = add("Mul", f"{add('MatMul', f'{at}qt {keys}', f'{at}score')} scale", f"{at}scaled")
        parts = add("Softmax", add("Add", f"{scores} {mask}", f"{at}masked"), f"{at}p", axis=-1)
        sums = add("MatMul", f"{parts} present_v.{layer}", f"{at}c")
        merged = add("Reshape", f"{add('Transpose', sums, f'{at}ct', perm=[0, 2, 1, 3])} merge", f"{at}merged")
        x = add("Add", f"{x} {dense(merged, f'{at}o', width, width)}", f"{at}x")
        wide = dense(normal(x, f"{at}b"), f"{at}up", width, 2 * width)
        act = add("Mul", f"{wide} {add('Sigmoid', wide, f'{at}gate')}", f"{at}act")
        x = add("Add", f"{x} {dense(act, f'{at}down', 2 * width, width)}", f"{at}out")
    add("MatMul", f"{normal(x, 'f')} {weight('head', width, WORDS)}", "logits")
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path, save_as_external_data=weights_beside, location=f"{path.name}.data", size_threshold=1024)
    return path
