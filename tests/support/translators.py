"""A tiny encoder and decoder with cross attention, in a folder as optimum exports them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.decoders import Array

WORDS, WIDTH, HEADS, LAYERS, POSITIONS = 40, 32, 2, 2, 320
SIDE = WIDTH // HEADS
ENCODER, DECODER, WITH_PAST, MERGED = (
    "encoder_model.onnx",
    "decoder_model.onnx",
    "decoder_with_past_model.onnx",
    "decoder_model_merged.onnx",
)
OWN = [f"{layer}.decoder.{part}" for layer in range(LAYERS) for part in ("key", "value")]
CROSS = [f"{layer}.encoder.{part}" for layer in range(LAYERS) for part in ("key", "value")]
_BRANCH = "use_cache_branch"
_OPSETS = [helper.make_opsetid("", 17)]


class _Graph:
    """Nodes over weights that the graphs of a folder share by their names."""

    def __init__(self, weights: dict[str, Array], prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights, self._prefix = weights, prefix

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        made = name or f"{self._prefix}v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [made], **attributes))
        return made

    def const(self, value: Any, dtype: str = "int64") -> str:
        name = f"{self._prefix}c{len(self.nodes)}_{len(self.weights)}"
        self.weights[name] = np.array(value, dtype)
        return name

    def weight(self, name: str, *shape: int) -> str:
        if name not in self.weights:
            own = np.random.default_rng(sum(map(ord, name)))
            self.weights[name] = own.normal(0, shape[0] ** -0.5, shape).astype("float32")
        return name

    def product(self, x: str, name: str, rows: int = WIDTH, columns: int = WIDTH) -> str:
        return self.add("MatMul", x, self.weight(name, rows, columns))

    def by_heads(self, x: str, name: str) -> str:
        heads = self.add("Reshape", self.product(x, name), self.const([0, 0, HEADS, SIDE]))
        return self.add("Transpose", heads, perm=[0, 2, 1, 3])

    def normal(self, x: str, name: str) -> str:
        return self.add("LayerNormalization", x, self.weight(f"{name}.gain", WIDTH), axis=-1)

    def attended(self, x: str, name: str, key: str, value: str, *, causal: bool = False, mask: str = "") -> str:
        scores = self.add("MatMul", self.by_heads(x, f"{name}.q"), self.add("Transpose", key, perm=[0, 1, 3, 2]))
        scaled = self.add("Mul", scores, self.const(SIDE**-0.5, "float32"))
        if causal:
            ones = self.add("Expand", self.const(-1e9, "float32"), self.add("Shape", scaled, start=2))
            scaled = self.add("Add", scaled, self.add("Trilu", ones, self.const(1), upper=1))
        if mask:
            scaled = self.add("Add", scaled, mask)
        seen = self.add("Transpose", self.add("MatMul", self.add("Softmax", scaled, axis=-1), value), perm=[0, 2, 1, 3])
        flat = self.add("Reshape", seen, self.const([0, 0, WIDTH]))
        return self.add("Add", x, self.product(flat, f"{name}.o"))

    def fed(self, x: str, name: str) -> str:
        wide = self.add("Relu", self.product(self.normal(x, name), f"{name}.up", WIDTH, 2 * WIDTH))
        return self.add("Add", x, self.product(wide, f"{name}.down", 2 * WIDTH, WIDTH))

    def graph(self, name: str, inputs: Any, outputs: Any, weights: dict[str, Array]) -> onnx.GraphProto:
        tensors = [numpy_helper.from_array(value, each) for each, value in weights.items()]
        return helper.make_graph(self.nodes, name, inputs, outputs, tensors)


def _info(name: str, dtype: int, *dims: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def _pasts(length: str) -> list[onnx.ValueInfoProto]:
    own = [_info(f"past_key_values.{each}", 1, "batch_size", HEADS, length, SIDE) for each in OWN]
    return own + [
        _info(f"past_key_values.{each}", 1, "batch_size", HEADS, "encoder_sequence_length_out", SIDE) for each in CROSS
    ]


def _sliced(graph: _Graph, before: str, behind: str) -> str:
    return graph.add("Slice", graph.weight("places", POSITIONS, WIDTH), before, behind, graph.const([0]))


def _numbers(graph: _Graph, before: str, behind: str) -> str:
    """Of the rows of new tokens."""
    begin, end = (graph.add("Squeeze", each) for each in (before, behind))
    return graph.add("Range", begin, end, graph.const(1))


def _gathered(graph: _Graph, before: str, behind: str) -> str:
    further = graph.add("Add", _numbers(graph, before, behind), graph.const([2]))
    return graph.add("Gather", graph.weight("places", POSITIONS, WIDTH), further)


def _computed(graph: _Graph, before: str, behind: str) -> str:
    number = graph.add("Cast", _numbers(graph, before, behind), to=TensorProto.FLOAT)
    return graph.add("Sin", graph.add("Unsqueeze", number, graph.const([1])))


_PLACES = {"sliced": _sliced, "gathered": _gathered, "computed": _computed}


def _distances(graph: _Graph, before: str, behind: str) -> str:
    """What is added to scores (1, heads, tokens, rows), by how far a row is before a token."""
    rows = graph.add("Range", graph.const(0), graph.add("Squeeze", behind), graph.const(1))
    own = graph.add("Unsqueeze", _numbers(graph, before, behind), graph.const([1]))
    far = graph.add("Clip", graph.add("Sub", own, rows), graph.const(0), graph.const(7))
    return graph.add(
        "Unsqueeze",
        graph.add("Transpose", graph.add("Gather", graph.weight("far", 8, HEADS), far), perm=[2, 0, 1]),
        graph.const([0]),
    )


def _decoder(graph: _Graph, *, with_past: bool, places: str) -> list[str]:
    """The outputs: logits, own rows, and rows of the encoder. With a past they are read, and others stand there."""
    add, const = graph.add, graph.const
    x = add("Gather", graph.weight("words", WORDS, WIDTH), "input_ids")
    count = add("Shape", "input_ids", start=1, end=2)
    before = add("Shape", "past_key_values.0.decoder.key", start=2, end=3) if with_past else const([0])
    behind, far = add("Add", before, count), ""
    if places == "distances":
        far = _distances(graph, before, behind)
    else:
        x = add("Add", x, _PLACES[places](graph, before, behind))
    own, cross = list[str](), list[str]()
    for layer in range(LAYERS):
        name = f"d{layer}"
        y = graph.normal(x, f"{name}.self")
        parts = [graph.by_heads(y, f"{name}.self.{part}") for part in "kv"]
        for part, kind in zip(list(parts), ("key", "value"), strict=True):
            if with_past:
                parts[len(own) % 2] = add("Concat", f"past_key_values.{layer}.decoder.{kind}", part, axis=2)
            own.append(parts[len(own) % 2])
        x = graph.attended(y, f"{name}.self", *parts, causal=not with_past, mask=far)
        if with_past:
            read = [f"past_key_values.{layer}.encoder.{kind}" for kind in ("key", "value")]
            cross += [add("Expand", const(0, "float32"), const([1, HEADS, 1, SIDE])) for _ in read]
        else:
            read = [graph.by_heads("encoder_hidden_states", f"{name}.cross.{part}") for part in "kv"]
            cross += read
        x = graph.fed(graph.attended(x, f"{name}.cross", *read), name)
    logits = add("MatMul", graph.normal(x, "last"), graph.weight("out", WIDTH, WORDS))
    return [logits, *own, *cross]


def _named(graph: _Graph, values: list[str]) -> list[str]:
    names = ["logits", *(f"present.{each}" for each in (*OWN, *CROSS))]
    return [graph.add("Identity", value, name=name) for name, value in zip(names, values, strict=False)]


def _outputs(*, cross: bool = True) -> list[onnx.ValueInfoProto]:
    named = [_info("logits", 1, "batch_size", "decoder_sequence_length", WORDS)]
    rows = {**dict.fromkeys(OWN, "rows"), **dict.fromkeys(CROSS if cross else (), "encoder_rows")}
    axes = {each: ("batch_size", HEADS, length, SIDE) for each, length in rows.items()}
    return named + [_info(f"present.{each}", 1, *dims) for each, dims in axes.items()]


def _save(graph: onnx.GraphProto, path: Path) -> None:
    onnx.save(helper.make_model(graph, opset_imports=_OPSETS, ir_version=8), path)


def write_translator(folder: Path, places: str = "sliced") -> Path:
    """The four graphs that optimum writes, and the configuration. `places`: how the decoder knows positions, a key of
    `_PLACES`, or "distances" between rows as T5.
    """
    folder.mkdir(exist_ok=True)
    ids = _info("input_ids", 7, "batch_size", "decoder_sequence_length")
    hidden = _info("encoder_hidden_states", 1, "batch_size", "encoder_sequence_length", WIDTH)
    encoder = _Graph({})
    x = encoder.add("Gather", encoder.weight("words", WORDS, WIDTH), "input_ids")
    y = encoder.normal(x, "e0")
    x = encoder.fed(encoder.attended(y, "e0", *(encoder.by_heads(y, f"e0.{part}") for part in "kv")), "e0")
    encoder.normal(x, "e1")
    encoder.nodes[-1].output[0] = "last_hidden_state"
    texts = [_info("input_ids", 7, "batch_size", "encoder_sequence_length")]
    outputs = [_info("last_hidden_state", 1, "batch_size", "encoder_sequence_length", WIDTH)]
    _save(encoder.graph("encoder", texts, outputs, encoder.weights), folder / ENCODER)
    shared: dict[str, Array] = {}
    branches = {}
    for name, with_past in ((DECODER, False), (WITH_PAST, True)):
        own = _Graph({})
        values = _decoder(own, with_past=with_past, places=places)
        _named(own, values[: 1 + len(OWN)] if with_past else values)
        inputs = [ids, *(_pasts("past_decoder_sequence_length") if with_past else [hidden])]
        _save(own.graph("decoder", inputs, _outputs(cross=not with_past), own.weights), folder / name)
        prefix = "c." if with_past else "n."
        branch = _Graph(shared, prefix)
        _named(branch, _decoder(branch, with_past=with_past, places=places))  # by the names of the outputs around
        branches[with_past] = branch.graph("branch", [], _outputs(), {})
    names = [each.name for each in _outputs()]
    taken = helper.make_node("If", [_BRANCH], names, then_branch=branches[True], else_branch=branches[False])
    merged = _Graph(shared)
    merged.nodes = [taken]
    inputs = [ids, hidden, *_pasts("past_decoder_sequence_length"), _info(_BRANCH, TensorProto.BOOL, 1)]
    _save(merged.graph("merged", inputs, _outputs(), shared), folder / MERGED)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": POSITIONS, "is_encoder_decoder": True}))
    return folder


CROSS_ROWS = [f"{part}_cross_{layer}" for layer in range(LAYERS) for part in ("key", "value")]
_SELF_ROWS = [f"{part}_self_{layer}" for layer in range(LAYERS) for part in ("key", "value")]


def write_recogniser(folder: Path) -> tuple[Path, Path]:
    """A speech recogniser as onnxruntime-genai has it: an encoder that gives keys and values for the decoder, and the
    decoder with its own cache.
    """
    encoder, frames = _Graph({}), 6
    sound = encoder.product("audio_features", "frames", 8)
    hidden = encoder.normal(encoder.fed(encoder.normal(sound, "e0"), "e0"), "e1")
    for layer in range(LAYERS):
        for part in ("key", "value"):
            read_once = encoder.by_heads(hidden, f"d{layer}.cross.{part[0]}")
            encoder.add("Identity", read_once, name=f"present_{part}_cross_{layer}")
    cross = [_info(f"present_{each}", 1, "b", HEADS, frames, SIDE) for each in CROSS_ROWS]
    inputs = [_info("audio_features", 1, "b", frames, 8)]
    _save(encoder.graph("encoder", inputs, cross, encoder.weights), folder / "encoder.onnx")
    made = _Graph({})
    add, const = made.add, made.const
    x = add("Gather", made.weight("words", WORDS, WIDTH), "input_ids")
    x = add("Add", x, add("Gather", made.weight("places", 4 * POSITIONS, WIDTH), "position_ids"))
    total = add("Gather", add("Shape", "attention_mask"), const(1))
    own = add("Range", add("Sub", total, add("Gather", add("Shape", "input_ids"), const(1))), total, const(1))
    later = add("Greater", add("Range", const(0), total, const(1)), add("Unsqueeze", own, const([1])))
    hidden_keys = add("Equal", add("Unsqueeze", "attention_mask", const([1, 2])), const(0))
    mask = add("Where", add("Or", later, hidden_keys), const(-1e9, "float32"), const(0, "float32"))
    for layer in range(LAYERS):
        name = f"d{layer}"
        y = made.normal(x, f"{name}.self")
        rows = [
            add("Concat", f"past_{part}_self_{layer}", made.by_heads(y, f"{name}.self.{part[0]}"), axis=2)
            for part in ("key", "value")
        ]
        kinds = zip(rows, ("key", "value"), strict=True)
        names = [add("Identity", each, name=f"present_{part}_self_{layer}") for each, part in kinds]
        x = made.attended(y, f"{name}.self", *names, mask=mask)
        read = [f"past_{part}_cross_{layer}" for part in ("key", "value")]
        x = made.fed(made.attended(x, f"{name}.cross", *read), name)
    add("MatMul", made.normal(x, "last"), made.weight("out", WIDTH, WORDS), name="logits")
    ids = [_info(name, 7, "b", "s") for name in ("input_ids", "position_ids")]
    pasts = [_info(f"past_{each}", 1, "b", HEADS, "past", SIDE) for each in _SELF_ROWS]
    pasts += [_info(f"past_{each}", 1, "b", HEADS, frames, SIDE) for each in CROSS_ROWS]
    inputs = [*ids, _info("attention_mask", 7, "b", "past + s"), *pasts]
    outputs = [_info("logits", 1, "b", "s", WORDS)]
    outputs += [_info(f"present_{each}", 1, "b", HEADS, "past + s", SIDE) for each in _SELF_ROWS]
    _save(made.graph("decoder", inputs, outputs, made.weights), folder / "decoder.onnx")
    return folder / "encoder.onnx", folder / "decoder.onnx"
