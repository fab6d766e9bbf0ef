"""Decoders in the shapes of known models, with random weights in a file beside the graph.

`language` is as onnxruntime-genai writes it: GroupQueryAttention over a cache of all rows, norms with their residual,
and products in float32 or in blocks of few bits. The others are decoders of an encoder, with products and softmax
written out, as optimum writes them. Vocabularies are cut: the last product is one of many and would take most bytes.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

Array = npt.NDArray[Any]
DATA_SUFFIX = ".data"
BLOCK = 32
"""numbers of a scale"""
_OPSETS = (("", 17), ("com.microsoft", 1))
_ROTARY_BASE = 1e6
_EPSILON = 1e-6


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int
    positions: int
    source: int = 0
    """rows of the encoder's outputs; 0: a language model"""
    bits: int = 0
    """of weights in blocks; 0: float32"""
    normal_first: bool = True
    """whether norms come before the products, and one at the end"""

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def key_width(self) -> int:
        return self.key_heads * self.head

    @property
    def weight_bytes(self) -> int:
        """That a step reads: all products, and none of the table of words."""
        own = self.width * (2 * self.width + 2 * self.key_width)
        inner = self.width * self.inner * (2 if self.source else 3)
        across = 2 * self.width**2 if self.source else 0
        numbers = self.layers * (own + inner + across) + self.width * self.vocabulary
        return numbers * self.bits // 8 + 4 * numbers // BLOCK if self.bits else 4 * numbers

    def cache_bytes(self, length: int) -> int:
        """That a step reads with so many tokens in the cache."""
        return 8 * self.layers * (length * self.key_width + self.source * self.width)

    def shapes(self, tokens: int, rows: int) -> dict[str, list[int]]:
        """Of the inputs, for a cache of so many rows: all rows of a language model, else those before the tokens."""
        ids = [1, tokens]
        cache, of_encoder = (
            [1, heads, each, self.head] for heads, each in ((self.key_heads, rows), (self.heads, self.source))
        )
        made = {"input_ids": ids, "attention_mask": [1, rows + tokens if self.source else rows]}
        made |= {"position_ids": ids} if self.source else {}
        for layer in range(self.layers):
            for kind in ("key", "value"):
                made[f"past_key_values.{layer}.{'decoder.' if self.source else ''}{kind}"] = cache
                if self.source:
                    made[f"past_key_values.{layer}.encoder.{kind}"] = of_encoder
        return made


MODELS = {
    "qwen": Sizes(24, 896, 14, 2, 4864, 8192, 2048),
    "whisper": Sizes(6, 512, 8, 8, 2048, 8192, 448, source=1500),
    "marian": Sizes(6, 512, 8, 8, 2048, 8192, 512, source=64, normal_first=False),
}
"""Qwen2.5 0.5B, the decoders of Whisper base and of a translator of Marian: the real vocabularies have 151,936, 51,865
and some 60,000 words"""


def write_decoder(path: Path, sizes: Sizes) -> Path:
    """The ONNX file; weights lie in the file of the same name with DATA_SUFFIX."""
    with path.with_name(path.name + DATA_SUFFIX).open("wb") as file:
        graph = _Graph(sizes, file, path.name + DATA_SUFFIX)
        made = _language(graph) if not sizes.source else _of_encoder(graph)
    opsets = [helper.make_opsetid(*each) for each in _OPSETS]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=10), path)
    return path


def in_bits(sizes: Sizes, bits: int) -> Sizes:
    return replace(sizes, bits=bits)


class _Graph:
    def __init__(self, sizes: Sizes, file: IO[bytes], location: str) -> None:
        self.sizes = sizes
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self._file, self._location = file, location
        self._rng = np.random.default_rng(0)

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """The name of the first output."""
        names = [f"v{len(self.nodes)}.{at}" if at else f"v{len(self.nodes)}" for at in range(outputs)]
        domain = "com.microsoft" if operator in _OF_ONNX_RUNTIME else ""
        self.nodes.append(helper.make_node(operator, list(inputs), names, domain=domain, **attributes))
        return names[0]

    def named(self, name: str, value: str) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))

    def const(self, value: Any, dtype: str = "int64") -> str:
        array = np.array(value, dtype)
        name = f"w{len(self.tensors)}"
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = TensorProto(name=name, data_type=kind, dims=array.shape)
        if array.nbytes < 1024:
            tensor.raw_data = array.tobytes()
        else:
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": self._location, "offset": self._file.tell(), "length": array.nbytes}
            for key, each in place.items():
                tensor.external_data.add(key=key, value=str(each))
            self._file.write(array.data)
            self._file.write(bytes(-array.nbytes % 4096))  # pages: a file can be mapped
        self.tensors.append(tensor)
        return name

    def drawn(self, *shape: int, spread: float) -> str:
        return self.const(self._rng.standard_normal(shape, np.float32) * np.float32(spread), "float32")

    def product(self, x: str, rows: int, columns: int, *, has_bias: bool = False) -> str:
        sizes, spread = self.sizes, rows**-0.5
        if sizes.bits:
            blocks = rows // BLOCK
            numbers = self._rng.integers(0, 256, (columns, blocks, BLOCK * sizes.bits // 8), np.uint8)
            step = spread / 2 ** (sizes.bits - 2)
            scales = (self._rng.uniform(0.5, 1, columns * blocks) * step).astype(np.float16)
            operands = [self.const(numbers, "uint8"), self.const(scales, "float32")]
            known = {"K": rows, "N": columns, "bits": sizes.bits, "block_size": BLOCK, "accuracy_level": 4}
            made = self.add("MatMulNBits", x, *operands, **known)
        else:
            made = self.add("MatMul", x, self.drawn(rows, columns, spread=spread))
        return self.add("Add", made, self.drawn(columns, spread=0.1)) if has_bias else made

    def gain(self) -> str:
        return self.const(self._rng.uniform(0.5, 2, self.sizes.width), "float32")


_OF_ONNX_RUNTIME = {"MatMulNBits", "GroupQueryAttention", "SkipSimplifiedLayerNormalization"}


def _language(made: _Graph) -> onnx.GraphProto:
    sizes = made.sizes
    angles = np.arange(sizes.positions)[:, None] / _ROTARY_BASE ** (np.arange(0, sizes.head, 2) / sizes.head)
    tables = [made.const(table, "float32") for table in (np.cos(angles), np.sin(angles))]
    kept = made.add("ReduceSum", "attention_mask", made.const([1]), keepdims=0)
    last = made.add("Cast", made.add("Sub", kept, made.const(1)), to=TensorProto.INT32)
    total = made.add("Cast", made.add("Gather", made.add("Shape", "attention_mask"), made.const(1)), to=6)
    x = made.add("Gather", made.drawn(sizes.vocabulary, sizes.width, spread=1.0), "input_ids")
    y = made.add("SimplifiedLayerNormalization", x, made.gain(), axis=-1, epsilon=_EPSILON)
    for layer in range(sizes.layers):
        packed = made.product(y, sizes.width, sizes.width + 2 * sizes.key_width, has_bias=True)
        pasts = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        outputs = [f"seen{layer}", *(f"present.{layer}.{kind}" for kind in ("key", "value"))]
        known: dict[str, Any] = {"num_heads": sizes.heads, "kv_num_heads": sizes.key_heads, "do_rotary": 1}
        inputs = [packed, "", "", *pasts, last, total, *tables]
        made.nodes.append(helper.make_node("GroupQueryAttention", inputs, outputs, domain="com.microsoft", **known))
        x, y = _added(made, x, made.product(outputs[0], sizes.width, sizes.width))
        gate, up = (made.product(y, sizes.width, sizes.inner) for _ in range(2))
        active = made.add("Mul", made.add("Mul", gate, made.add("Sigmoid", gate)), up)
        x, y = _added(made, x, made.product(active, sizes.inner, sizes.width))
    made.named("logits", made.product(y, sizes.width, sizes.vocabulary))
    return _closed(made, ["past_key_values.{}.key", "past_key_values.{}.value"], "total_sequence_length")


def _added(made: _Graph, x: str, more: str) -> tuple[str, str]:
    """The sum, and its norm."""
    y = made.add("SkipSimplifiedLayerNormalization", x, more, made.gain(), outputs=4, epsilon=_EPSILON)
    made.nodes[-1].output[1] = made.nodes[-1].output[2] = ""
    return made.nodes[-1].output[3], y


def _of_encoder(made: _Graph) -> onnx.GraphProto:
    sizes = made.sizes
    words = made.drawn(sizes.vocabulary, sizes.width, spread=1.0)
    places = made.drawn(sizes.positions, sizes.width, spread=1.0)
    x = made.add("Add", made.add("Gather", words, "input_ids"), made.add("Gather", places, "position_ids"))
    mask = _mask(made)
    for layer in range(sizes.layers):
        for part in (_own_attention, _cross_attention, _inner):
            y = _normal(made, x) if sizes.normal_first else x
            x = made.add("Add", x, part(made, layer, y, mask))
            x = x if sizes.normal_first else _normal(made, x)
    y = _normal(made, x) if sizes.normal_first else x
    made.named("logits", made.product(y, sizes.width, sizes.vocabulary))
    return _closed(made, ["past_key_values.{}.decoder.key", "past_key_values.{}.decoder.value"], "past + tokens")


def _normal(made: _Graph, x: str) -> str:
    shift = made.drawn(made.sizes.width, spread=0.1)
    return made.add("LayerNormalization", x, made.gain(), shift, axis=-1, epsilon=1e-5)


def _mask(made: _Graph) -> str:
    """0 for keys that a query sees, else the lowest number (batch, 1, tokens, keys)."""
    total = made.add("Gather", made.add("Shape", "attention_mask"), made.const(1))
    count = made.add("Gather", made.add("Shape", "input_ids"), made.const(1))
    keys = made.add("Range", made.const(0), total, made.const(1))
    own = made.add("Range", made.add("Sub", total, count), total, made.const(1))
    later = made.add("Greater", keys, made.add("Unsqueeze", own, made.const([1])))
    hidden = made.add("Equal", made.add("Unsqueeze", "attention_mask", made.const([1, 2])), made.const(0))
    lowest = made.const(np.finfo("float32").min, "float32")
    return made.add("Where", made.add("Or", later, hidden), lowest, made.const(0, "float32"))


def _own_attention(made: _Graph, layer: int, y: str, mask: str) -> str:
    query, key, value = (_by_heads(made, _with_bias(made, y)) for _ in range(3))
    held = []
    for kind, new in (("key", key), ("value", value)):
        name = f"present.{layer}.decoder.{kind}"
        past = f"past_key_values.{layer}.decoder.{kind}"
        made.nodes.append(helper.make_node("Concat", [past, new], [name], axis=2))
        held.append(name)
    return _attended(made, query, held[0], held[1], mask)


def _cross_attention(made: _Graph, layer: int, y: str, _: str) -> str:
    query = _by_heads(made, _with_bias(made, y))
    before = f"past_key_values.{layer}.encoder"
    return _attended(made, query, f"{before}.key", f"{before}.value", "")


def _inner(made: _Graph, _layer: int, y: str, _mask: str) -> str:
    sizes = made.sizes
    wide = made.product(y, sizes.width, sizes.inner, has_bias=True)
    half, one = made.const(0.5, "float32"), made.const(1.0, "float32")
    erf = made.add("Erf", made.add("Mul", wide, made.const(2**-0.5, "float32")))
    active = made.add("Mul", made.add("Mul", wide, made.add("Add", erf, one)), half)
    return made.product(active, sizes.inner, sizes.width, has_bias=True)


def _with_bias(made: _Graph, y: str) -> str:
    return made.product(y, made.sizes.width, made.sizes.width, has_bias=True)


def _by_heads(made: _Graph, x: str) -> str:
    shape = made.const([0, 0, made.sizes.heads, made.sizes.head])
    return made.add("Transpose", made.add("Reshape", x, shape), perm=[0, 2, 1, 3])


def _attended(made: _Graph, query: str, key: str, value: str, mask: str) -> str:
    sizes = made.sizes
    scores = made.add("MatMul", query, made.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = made.add("Mul", scores, made.const(sizes.head**-0.5, "float32"))
    scores = made.add("Add", scores, mask) if mask else scores
    seen = made.add("Transpose", made.add("MatMul", made.add("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
    return _with_bias(made, made.add("Reshape", seen, made.const([0, 0, sizes.width])))


def _closed(made: _Graph, caches: list[str], total: str) -> onnx.GraphProto:
    """The graph with its inputs and outputs."""
    sizes, info, number = made.sizes, helper.make_tensor_value_info, TensorProto.INT64
    ids = ("input_ids", "position_ids") if sizes.source else ("input_ids",)
    inputs = [info(name, number, ["batch", "tokens"]) for name in ids]
    inputs.append(info("attention_mask", number, ["batch", total]))
    outputs = [info("logits", TensorProto.FLOAT, ["batch", "tokens", sizes.vocabulary])]
    for layer in range(sizes.layers):
        for cache in caches:
            past = cache.format(layer)
            shape: list[Any] = ["batch", sizes.key_heads, "past", sizes.head]
            inputs.append(info(past, TensorProto.FLOAT, shape))
            present = past.replace("past_key_values", "present")
            outputs.append(info(present, TensorProto.FLOAT, [*shape[:2], total, sizes.head]))
        for kind in ("key", "value") if sizes.source else ():
            shape = ["batch", sizes.heads, sizes.source, sizes.head]
            inputs.append(info(f"past_key_values.{layer}.encoder.{kind}", TensorProto.FLOAT, shape))
    return helper.make_graph(made.nodes, "decoder", inputs, outputs, made.tensors)
