"""The operators of the first table: products and convolutions of three well-known models, each with NumPy's result."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_RESNET, _BERT = "ResNet-50 (v1.5, batch 16)", "BERT-base (8 texts of 384 tokens)"
_LLM = "MLP of Llama 3 8B"
_CHANNELS_LAST = (0, 2, 3, 1)
_OPSET, _IR_VERSION = 17, 8


@dataclass(frozen=True)
class Operation:
    """A product of two matrices, or a convolution whose padding keeps the extents for a stride of 1."""

    name: str
    source: str
    """where it is from"""
    x: tuple[int, ...]
    """rows and K; of an image N, C, H and W"""
    w: tuple[int, ...]
    """K and columns; of filters O, C, R and S"""
    stride: int = 1

    @property
    def is_product(self) -> bool:
        return len(self.x) == 2

    @property
    def padding(self) -> int:
        return self.w[2] // 2

    @property
    def y(self) -> tuple[int, ...]:
        if self.is_product:
            return self.x[0], self.w[1]
        extents = [(size + 2 * self.padding - self.w[2]) // self.stride + 1 for size in self.x[2:]]
        return self.x[0], self.w[0], *extents

    def is_channels_last(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Whether arguments with the shapes of x, w and y have their channels last. Raises ValueError for others."""
        own = (self.x, self.w, self.y)
        if [tuple(each) for each in shapes] == list(own):
            return False
        if not self.is_product and [tuple(each) for each in shapes] == [_last(each) for each in own]:
            return True
        raise ValueError(f"{self.name}: arguments {list(shapes)} are in no layout that peers know")

    def result(self, x: Any, w: Any, *, channels_last: bool) -> Any:
        """NumPy's, in float32 for float16 and in float64 for float32."""
        wide = np.float32 if x.dtype == np.float16 else np.float64
        x, w = x.astype(wide), w.astype(wide)
        if self.is_product:
            return x @ w
        if not channels_last:
            x, w = x.transpose(_CHANNELS_LAST), w.transpose(_CHANNELS_LAST)
        beside = (self.padding, self.padding)
        x = np.pad(x, ((0, 0), beside, beside, (0, 0)))
        rows, columns = (slice(None, self.stride * size, self.stride) for size in self.y[2:])
        taps = [(r, s) for r in range(self.w[2]) for s in range(self.w[3])]
        y = sum(x[:, r:, s:][:, rows, columns] @ w[:, r, s].T for r, s in taps)
        return y if channels_last else np.moveaxis(y, -1, 1)


def save_model(path: Path, operations: Sequence[Operation], dtype: str) -> Path:
    """Write a model of these operators side by side. Their weights are inputs."""
    import onnx

    kind = {"float16": onnx.TensorProto.FLOAT16, "float32": onnx.TensorProto.FLOAT}[dtype]
    nodes, values = [], {}
    for number, each in enumerate(operations):
        window: dict[str, Any] = {} if each.is_product else {"strides": [each.stride] * 2, "pads": [each.padding] * 4}
        names = [f"{name}{number}" for name in "xwy"]
        nodes.append(onnx.helper.make_node("MatMul" if each.is_product else "Conv", names[:2], names[2:], **window))
        for name, shape in zip(names, (each.x, each.w, each.y), strict=True):
            values[name] = onnx.helper.make_tensor_value_info(name, kind, shape)
    inputs, outputs = ([value for name, value in values.items() if name[0] in which] for which in ("xw", "y"))
    graph = onnx.helper.make_graph(nodes, "operations", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", _OPSET)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION), path)
    return path


def operation_of(described: Sequence[Any], operations: Iterable[Operation]) -> Operation:
    """The operator with these arguments, as an artifact describes them. Raises ValueError."""
    shapes = [shape for _, _, shape, *_ in described]
    for each in operations:
        with contextlib.suppress(ValueError):
            each.is_channels_last(shapes)
            return each
    raise ValueError(f"no operator has arguments of {shapes}")


def _last(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape[at] for at in _CHANNELS_LAST)


def _convolution(name: str, channels: int, size: int, filters: int, kernel: int, stride: int = 1) -> Operation:
    image, weights = (16, channels, size, size), (filters, channels, kernel, kernel)
    return Operation(f"resnet_{name}", _RESNET, image, weights, stride)


def _product(name: str, source: str, rows: int, terms: int, columns: int) -> Operation:
    return Operation(name, source, (rows, terms), (terms, columns))


OPERATIONS = (
    _product("llm_up_512", f"{_LLM}, 512 tokens", 512, 4096, 14336),
    _convolution("conv3_3x3", 128, 28, 128, 3),
    _product("bert_inner", _BERT, 3072, 768, 3072),
    _convolution("conv4_3x3", 256, 14, 256, 3),
    _product("llm_down_512", f"{_LLM}, 512 tokens", 512, 14336, 4096),
    _convolution("conv1_7x7", 3, 224, 64, 7, stride=2),
    _product("bert_outer", _BERT, 3072, 3072, 768),
    _convolution("conv2_3x3", 64, 56, 64, 3),
    _product("llm_up_16", f"{_LLM}, 16 tokens", 16, 4096, 14336),
    _convolution("conv5_3x3", 512, 7, 512, 3),
    _product("bert_qkv", f"{_BERT}, its three products as one", 3072, 768, 2304),
    _convolution("conv3_3x3_stride2", 128, 56, 128, 3, stride=2),
    _product("llm_down_16", f"{_LLM}, 16 tokens", 16, 14336, 4096),
    _convolution("conv2_1x1_expand", 64, 56, 256, 1),
    _product("bert_attention", _BERT, 3072, 768, 768),
    _convolution("conv3_1x1_reduce", 512, 28, 128, 1),
    _product("bert_inner_128", "BERT-base (one text of 128 tokens)", 128, 768, 3072),
    _convolution("conv4_1x1_reduce", 1024, 14, 256, 1),
    _convolution("conv5_1x1_expand", 512, 7, 2048, 1),
    _product("resnet_classes", _RESNET, 16, 2048, 1000),
)
"""The most telling first: the table is made in the order of its rows."""
