"""A float32 transformer encoder as exporters write one: normalisations and GELU decomposed, heads split by reshapes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET, _IR_VERSION = 17, 8
_EPSILON = 1e-12


@dataclass(frozen=True)
class Encoder:
    """Sizes of an encoder; the defaults are those of MiniLM with three layers."""

    layers: int = 3
    width: int = 384
    heads: int = 12
    inner: int = 1536
    """width between the two products of a feed-forward network"""
    length: int = 128
    """tokens of an input"""
    vocabulary: int = 2000

    def save(self, path: Path) -> None:
        """Write the model with random weights. Inputs: `ids` and `mask`, int64 of (1, length)."""
        onnx.save(_Writer(self).model(), path)


class _Writer:
    """Appends nodes; each method returns the name of the value that it made."""

    def __init__(self, sizes: Encoder) -> None:
        self._sizes = sizes
        self._rng = np.random.default_rng(0)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def model(self) -> Any:
        sizes = self._sizes
        table = self._random(sizes.vocabulary, sizes.width)
        words = self._node("Gather", table, "ids")
        x = self._normalized(self._node("Add", words, self._random(sizes.length, sizes.width)))
        visible = self._node("Unsqueeze", self._node("Cast", "mask", to=TensorProto.FLOAT), self._const([1, 2]))
        hidden = self._node("Mul", self._node("Sub", self._const(1.0), visible), self._const(-10000.0))
        for _ in range(sizes.layers):
            x = self._normalized(self._node("Add", x, self._attention(x, hidden)))
            x = self._normalized(self._node("Add", x, self._feed_forward(x)))
        shape = [1, sizes.length, sizes.width]
        tokens = [helper.make_tensor_value_info(each, TensorProto.INT64, shape[:2]) for each in ("ids", "mask")]
        result = helper.make_tensor_value_info(x, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self._nodes, "encoder", tokens, [result], self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)

    def _attention(self, x: str, hidden: str) -> str:
        sizes = self._sizes
        depth = sizes.width // sizes.heads
        query = self._heads(x, [0, 2, 1, 3])
        key = self._heads(x, [0, 2, 3, 1])
        value = self._heads(x, [0, 2, 1, 3])
        scores = self._node("Div", self._node("MatMul", query, key), self._const(depth**0.5))
        weights = self._node("Softmax", self._node("Add", scores, hidden), axis=-1)
        merged = self._node("Transpose", self._node("MatMul", weights, value), perm=[0, 2, 1, 3])
        flat = self._node("Reshape", merged, self._const([1, sizes.length, sizes.width]))
        return self._dense(flat, sizes.width, sizes.width)

    def _heads(self, x: str, perm: list[int]) -> str:
        sizes = self._sizes
        shape = [1, sizes.length, sizes.heads, sizes.width // sizes.heads]
        split = self._node("Reshape", self._dense(x, sizes.width, sizes.width), self._const(shape))
        return self._node("Transpose", split, perm=perm)

    def _feed_forward(self, x: str) -> str:
        sizes = self._sizes
        inner = self._dense(x, sizes.width, sizes.inner)
        error = self._node("Erf", self._node("Div", inner, self._const(2**0.5)))
        gelu = self._node("Mul", inner, self._node("Add", error, self._const(1.0)))
        return self._dense(self._node("Mul", gelu, self._const(0.5)), sizes.inner, sizes.width)

    def _dense(self, x: str, inputs: int, outputs: int) -> str:
        product = self._node("MatMul", x, self._random(inputs, outputs))
        return self._node("Add", self._random(outputs), product)

    def _normalized(self, x: str) -> str:
        centred = self._node("Sub", x, self._node("ReduceMean", x, axes=[-1]))
        squares = self._node("Pow", centred, self._const(2.0))
        variance = self._node("Add", self._node("ReduceMean", squares, axes=[-1]), self._const(_EPSILON))
        scaled = self._node(
            "Mul", self._node("Div", centred, self._node("Sqrt", variance)), self._random(self._sizes.width)
        )
        return self._node("Add", scaled, self._random(self._sizes.width))

    def _node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"value{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def _random(self, *shape: int) -> str:
        numbers = (
            self._rng.standard_normal(shape) / shape[0] ** 0.5 if len(shape) > 1 else self._rng.random(shape) + 0.5
        )
        return self._const(numbers.astype("float32"))

    def _const(self, numbers: npt.NDArray[Any] | float | list[int]) -> str:
        array = np.asarray(numbers)
        whole = array.dtype.kind == "i"
        name = f"weight{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array.astype("int64" if whole else "float32"), name))
        return name
