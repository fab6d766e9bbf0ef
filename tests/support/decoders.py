"""Tiny decoders with a cache as exporters write them: norms, rotary embeddings and attention are written out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.real_bundle import compile_model

Array = npt.NDArray[Any]
VOCABULARY, HEADS, KEY_HEADS, HEAD = 60, 4, 2, 16
_WIDTH, _KEY_WIDTH = HEADS * HEAD, KEY_HEADS * HEAD
_POSITIONS = 512


def _caches(layers: int = 1) -> list[str]:
    return [f"{kind}.{layer}" for layer in range(layers) for kind in ("key", "value")]


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self._rng = np.random.default_rng(0)

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        made = name or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [made], **attributes))
        return made

    def const(self, value: Any, dtype: str = "int64") -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.array(value, dtype)
        return name

    def weight(self, *shape: int) -> str:
        return self.const(self._rng.normal(0, 1 / np.sqrt(shape[0]), shape), "float32")

    def product(self, x: str, columns: int, rows: int = _WIDTH) -> str:
        return self.add("MatMul", x, self.weight(rows, columns))

    def norm(self, x: str) -> str:
        mean = self.add("ReduceMean", self.add("Pow", x, self.const(2, "float32")), self.const([-1]))
        root = self.add("Sqrt", self.add("Add", mean, self.const(1e-6, "float32")))
        return self.add("Mul", self.const(self._rng.uniform(0.5, 2, _WIDTH), "float32"), self.add("Div", x, root))

    def by_heads(self, x: str, columns: int) -> str:
        heads = self.add("Reshape", self.product(x, columns), self.const([0, 0, columns // HEAD, HEAD]))
        return self.add("Transpose", heads, perm=[0, 2, 1, 3])

    def repeated(self, x: str) -> str:
        """Each head of keys once for each head of queries that shares it."""
        deep = self.add("Unsqueeze", x, self.const([2]))
        wide = self.add("Expand", deep, self.const([1, 1, HEADS // KEY_HEADS, 1, 1]))
        return self.add("Reshape", wide, self.const([0, HEADS, -1, HEAD]))

    def turned(self, x: str, cos: str, sin: str) -> str:
        half, axis = HEAD // 2, self.const([3])
        first = self.add("Slice", x, self.const([0]), self.const([half]), axis)
        second = self.add("Slice", x, self.const([half]), self.const([HEAD]), axis)
        other = self.add("Concat", self.add("Neg", second), first, axis=3)
        return self.add("Add", self.add("Mul", x, cos), self.add("Mul", other, sin))

    def padding(self) -> str:
        """0 for tokens, and a low number where `attention_mask` is 0 (batch, 1, 1, keys)."""
        hidden = self.add("Sub", self.const(1, "float32"), self.add("Cast", "attention_mask", to=TensorProto.FLOAT))
        return self.add("Unsqueeze", self.add("Mul", hidden, self.const(-1e9, "float32")), self.const([1, 2]))

    def mask(self) -> str:
        """0 for keys that a query sees, else the lowest number (batch, 1, tokens, keys)."""
        total = self.add("Gather", self.add("Shape", "attention_mask"), self.const(1))
        count = self.add("Gather", self.add("Shape", "input_ids"), self.const(1))
        keys = self.add("Range", self.const(0), total, self.const(1))
        own = self.add("Range", self.add("Sub", total, count), total, self.const(1))
        later = self.add("Greater", keys, self.add("Unsqueeze", own, self.const([1])))
        hidden = self.add("Equal", self.add("Unsqueeze", "attention_mask", self.const([1, 2])), self.const(0))
        either = self.add("Or", later, hidden)
        return self.add("Where", either, self.const(np.finfo("float32").min, "float32"), self.const(0, "float32"))

    def grouped(self, number: int, parts: list[str], tables: tuple[str, str]) -> str:
        """The same by ONNX Runtime's operator. It gets (batch, tokens, width)."""
        lengths = self.add("ReduceSum", "attention_mask", self.const([1]), keepdims=0)
        last = self.add("Cast", self.add("Sub", lengths, self.const(1)), to=TensorProto.INT32)
        total = self.add("Gather", self.add("Shape", "attention_mask"), self.const(1))
        whole = self.add("Cast", total, to=TensorProto.INT32)
        names = [f"v{len(self.nodes)}", f"present.key.{number}", f"present.value.{number}"]
        pasts = [f"past.key.{number}", f"past.value.{number}"]
        named: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS, "do_rotary": 1}
        inputs = [*parts, *pasts, last, whole, *tables]
        self.nodes.append(helper.make_node("GroupQueryAttention", inputs, names, domain="com.microsoft", **named))
        return names[0]

    def scattered(self, number: int, query: str, parts: Sequence[str]) -> str:
        """The same by ONNX's operators for a cache of all rows."""
        lengths = self.add("ReduceSum", "attention_mask", self.const([1]), keepdims=0)
        count = self.add("Gather", self.add("Shape", "input_ids"), self.const([1]))
        places = self.add("Sub", lengths, count)
        rows = [
            self.add("TensorScatter", f"past.{kind}.{number}", part, places, name=f"present.{kind}.{number}")
            for kind, part in zip(("key", "value"), parts, strict=True)
        ]
        return self.add("Attention", query, *rows, "", "", "", lengths, is_causal=1)

    def layer(self, number: int, x: str, mask: str, tables: tuple[str, str] | None, *, grouped: bool = False) -> str:
        """Without a mask, attention is an operator over a cache of all rows; without tables, no position is known."""
        y = self.norm(x)
        if grouped and tables:
            parts = [self.product(y, columns) for columns in (_WIDTH, _KEY_WIDTH, _KEY_WIDTH)]
            return self.ended(x, self.grouped(number, parts, tables))
        query, key, value = (self.by_heads(y, columns) for columns in (_WIDTH, _KEY_WIDTH, _KEY_WIDTH))
        if tables:
            query, key = self.turned(query, *tables), self.turned(key, *tables)
        if not mask:
            return self.ended(x, self.flat(self.scattered(number, query, (key, value))))
        key = self.add("Concat", f"past.key.{number}", key, name=f"present.key.{number}", axis=2)
        value = self.add("Concat", f"past.value.{number}", value, name=f"present.value.{number}", axis=2)
        scores = self.add("MatMul", query, self.add("Transpose", self.repeated(key), perm=[0, 1, 3, 2]))
        scores = self.add("Add", self.add("Mul", scores, self.const(HEAD**-0.5, "float32")), mask)
        seen = self.add("MatMul", self.add("Softmax", scores, axis=-1), self.repeated(value))
        return self.ended(x, self.flat(seen))

    def flat(self, seen: str) -> str:
        return self.add("Reshape", self.add("Transpose", seen, perm=[0, 2, 1, 3]), self.const([0, 0, _WIDTH]))

    def ended(self, x: str, flat: str) -> str:
        x = self.add("Add", x, self.product(flat, _WIDTH))
        y = self.norm(x)
        gate, up = self.product(y, 2 * _WIDTH), self.product(y, 2 * _WIDTH)
        silu = self.add("Mul", gate, self.add("Sigmoid", gate))
        return self.add("Add", x, self.product(self.add("Mul", silu, up), _WIDTH, 2 * _WIDTH))


def write_decoder(path: Path, *, grouped: bool = False, scatters: bool = False, weights_beside: bool = False) -> Path:
    """Its outputs follow from positions. With `grouped`, attention is GroupQueryAttention, which turns queries and keys
    itself. With `scatters`, TensorScatter writes into a cache of all rows.
    """
    made = _Graph()
    angles = np.arange(_POSITIONS)[:, None] / 100.0 ** (np.arange(HEAD // 2) / (HEAD // 2))
    if grouped:
        cos, sin = (made.const(table, "float32") for table in (np.cos(angles), np.sin(angles)))
    else:
        cos, sin = (
            made.add("Unsqueeze", made.add("Gather", made.const(table, "float32"), "position_ids"), made.const([1]))
            for table in (np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2))
        )
    ids = ("input_ids",) if grouped else ("input_ids", "position_ids")
    mask = "" if grouped or scatters else made.mask()
    total = "past + s" if mask else "total"
    tables = (cos, sin)
    return _written(path, made, mask, tables, ids=ids, total=total, grouped=grouped, weights_beside=weights_beside)


def write_plain_decoder(path: Path, *, layers: int = 2, total: str = "total", weights_beside: bool = False) -> Path:
    """Without positions. The axes are `b`, `s`, `past` and `total`, which the mask has; attention adds the mask to
    scores of `past + s` keys. Another `total` is a name or a sum for the same axis.
    """
    made = _Graph()
    return _written(path, made, made.padding(), None, layers=layers, total=total, weights_beside=weights_beside)


def _written(
    path: Path,
    made: _Graph,
    mask: str,
    tables: tuple[str, str] | None,
    *,
    total: str,
    ids: Sequence[str] = ("input_ids",),
    layers: int = 1,
    weights_beside: bool = False,
    grouped: bool = False,
) -> Path:
    x = made.add("Gather", made.weight(VOCABULARY, _WIDTH), "input_ids")
    for number in range(layers):
        x = made.layer(number, x, mask, tables, grouped=grouped)
    made.add("MatMul", made.norm(x), made.const(made._rng.normal(0, 1, (_WIDTH, VOCABULARY)), "float32"), name="logits")
    info, whole, number = helper.make_tensor_value_info, TensorProto.FLOAT, TensorProto.INT64
    inputs = [*(info(name, number, ["b", "s"]) for name in ids), info("attention_mask", number, ["b", total])]
    inputs += [info(f"past.{each}", whole, ["b", KEY_HEADS, "past", HEAD]) for each in _caches(layers)]
    outputs = [info("logits", whole, ["b", "s", VOCABULARY])]
    outputs += [info(f"present.{each}", whole, ["b", KEY_HEADS, total, HEAD]) for each in _caches(layers)]
    weights = [numpy_helper.from_array(value, name) for name, value in made.weights.items()]
    graph = helper.make_graph(made.nodes, "decoder", inputs, outputs, weights)
    opset = 18 if mask or grouped else 24
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid("com.microsoft", 1)] if grouped else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9 if opset < 24 else 11)
    onnx.save(model, path, save_as_external_data=weights_beside, location=f"{path.name}.data", size_threshold=1024)
    return path


def shapes_of(past: int, tokens: int) -> dict[str, list[int]]:
    caches = {f"past.{each}": [1, KEY_HEADS, past, HEAD] for each in _caches()}
    ids = [1, tokens]
    return {"input_ids": ids, "position_ids": ids, "attention_mask": [1, past + tokens], **caches}


def compile_decoder(model: Path, past: int, tokens: int, *, grouped: bool = False, scatters: bool = False) -> Path:
    """With `grouped` or `scatters`, `past` are all rows of the cache."""
    out, shapes = model.with_name(f"decoder-{past}-{tokens}.fractune"), shapes_of(past, tokens)
    if grouped:
        del shapes["position_ids"]
    if grouped or scatters:
        shapes["attention_mask"] = [1, past]
    return compile_model(model, out, tuned=["cpu:1"], inputs=shapes)


class ByOnnxRuntime:
    """The decoder with its cache passed on from call to call."""

    def __init__(self, model: Path) -> None:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        self._cache: Mapping[str, Array] = {
            f"past.{each}": np.zeros((1, KEY_HEADS, 0, HEAD), "float32") for each in _caches()
        }

    def logits(self, *ids: int) -> Array:
        """Behind the last of these tokens (batch, vocabulary)."""
        length = next(iter(self._cache.values())).shape[2]
        given = {
            "input_ids": np.array([ids]),
            "position_ids": length + np.arange(len(ids))[None],
            "attention_mask": np.ones((1, length + len(ids)), "int64"),
        }
        names = {each.name for each in self._session.get_inputs()}
        given = {name: value for name, value in given.items() if name in names}
        logits, *presents = self._session.run(None, {**given, **self._cache})
        self._cache = dict(zip(self._cache, presents, strict=True))
        last: Array = logits[:, -1]
        return last
