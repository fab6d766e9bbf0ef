"""Decoders of `decoders.py` in other runtimes: each has a prompt and steps at any length, over one cache."""

import ctypes
import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from benchmarks.support.decoders import BLOCK, Sizes

Array = npt.NDArray[Any]
TOKEN = 5
"""that steps append: its value does not count"""


class Runtime(Protocol):
    def prefill(self, ids: Array) -> Array:
        """Forget all, append these tokens, and give the logits behind the last (vocabulary)."""
        ...

    def place(self, length: int) -> None:
        """Let the next step be one with so many tokens in the cache, whatever they are."""
        ...

    def step(self) -> Array:
        """Append a token; the logits behind it."""
        ...


def encoder_rows(sizes: Sizes) -> dict[str, Array]:
    """The inputs that stay the same, by name."""
    rng, shape = np.random.default_rng(1), (1, sizes.heads, sizes.source, sizes.head)
    return {
        f"past_key_values.{layer}.encoder.{kind}": rng.standard_normal(shape, np.float32)
        for layer in range(sizes.layers if sizes.source else 0)
        for kind in ("key", "value")
    }


class Ours:
    def __init__(self, bundle: str, sizes: Sizes, share: str | None) -> None:
        import fractune

        self._session = fractune.load(bundle, share=share, runtimes=False).decoder(encoder_rows(sizes))

    def prefill(self, ids: Array) -> Array:
        self._session.reset()
        made: Array = self._session.prefill(ids)[0]
        return made

    def place(self, length: int) -> None:
        self._session.length = length

    def step(self) -> Array:
        made: Array = self._session.step(TOKEN)[0]
        return made


class OnnxRuntime:
    """By io binding: a language model writes into one cache of all rows, and the others get a cache of one row more."""

    def __init__(self, model: str, sizes: Sizes, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._value: Callable[[Array], Any] = onnxruntime.OrtValue.ortvalue_from_numpy
        self._sizes = sizes
        self._fixed = {name: self._value(array) for name, array in encoder_rows(sizes).items()}
        names = [each.name for each in self._session.get_inputs()]
        self._pasts = [name for name in names if name.startswith("past") and name not in self._fixed]
        self._has_positions = "position_ids" in names
        self._length = 0
        self._caches: dict[str, Any] = {}
        self._hold(0 if sizes.source else sizes.positions)

    def _hold(self, rows: int) -> None:
        shape = (1, self._sizes.key_heads, rows, self._sizes.head)
        self._caches = {name: self._value(np.zeros(shape, np.float32)) for name in self._pasts}

    def prefill(self, ids: Array) -> Array:
        self.place(0)
        return self._run(ids)

    def place(self, length: int) -> None:
        if self._sizes.source and length != self._length:
            self._hold(length)
        self._length = length

    def step(self) -> Array:
        return self._run(np.array([TOKEN]))

    def _run(self, ids: Array) -> Array:
        binding, count = self._session.io_binding(), len(ids)
        binding.bind_cpu_input("input_ids", ids.astype(np.int64)[None])
        binding.bind_cpu_input("attention_mask", np.ones((1, self._length + count), np.int64))
        if self._has_positions:
            binding.bind_cpu_input("position_ids", self._length + np.arange(count)[None])
        binding.bind_output("logits", "cpu")
        for name, held in {**self._fixed, **self._caches}.items():
            binding.bind_ortvalue_input(name, held)
        for name, held in self._caches.items():
            if self._sizes.source:
                binding.bind_output(name.replace("past_key_values", "present"), "cpu")
            else:
                binding.bind_ortvalue_output(name.replace("past_key_values", "present"), held)
        self._session.run_with_iobinding(binding)
        logits, *presents = binding.get_outputs()
        if self._sizes.source:
            self._caches = dict(zip(self._caches, presents, strict=True))
        self._length += count
        made: Array = logits.numpy()[0, -1]
        return made


class GenAi:
    """onnxruntime-genai."""

    def __init__(self, model: str, sizes: Sizes, threads: int) -> None:
        genai: Any = importlib.import_module("onnxruntime_genai")

        folder = Path(model).with_suffix(f".genai{threads}")
        folder.mkdir(exist_ok=True)
        for name in (Path(model).name, f"{Path(model).name}.data"):
            if not (folder / name).exists():
                shutil.copyfile(Path(model).with_name(name), folder / name)
        (folder / "genai_config.json").write_text(json.dumps(_genai_config(Path(model).name, sizes, threads)))
        self._genai, self._model, self._sizes = genai, genai.Model(str(folder)), sizes
        self._generator, self._length = self._new(), 0

    def _new(self) -> Any:
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(max_length=self._sizes.positions, do_sample=False)
        return self._genai.Generator(self._model, params)

    def prefill(self, ids: Array) -> Array:
        self._generator, self._length = self._new(), 0
        return self._run(ids)

    def place(self, length: int) -> None:
        if self._length < length:
            self.prefill(np.full(length, TOKEN))
        self._generator.rewind_to(length)
        self._length = length

    def step(self) -> Array:
        return self._run(np.array([TOKEN]))

    def _run(self, ids: Array) -> Array:
        self._generator.append_tokens(ids.astype(np.int32)[None])
        self._length += len(ids)
        return np.asarray(self._generator.get_logits()).reshape(-1)[-self._sizes.vocabulary :]


def _genai_config(name: str, sizes: Sizes, threads: int) -> dict[str, Any]:
    names = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    caches = {f"past_{kind}_names": f"past_key_values.%d.{kind}" for kind in ("key", "value")}
    presents = {f"present_{kind}_names": f"present.%d.{kind}" for kind in ("key", "value")}
    options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1, "provider_options": []}
    decoder = {
        "session_options": {**options, "session.intra_op.allow_spinning": "0"},
        "filename": name,
        "head_size": sizes.head,
        "hidden_size": sizes.width,
        "inputs": {**names, **caches},
        "outputs": {"logits": "logits", **presents},
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.key_heads,
    }
    end = sizes.vocabulary - 1
    return {
        "model": {
            "type": "qwen2",
            "vocab_size": sizes.vocabulary,
            "context_length": sizes.positions,
            "bos_token_id": 0,
            "eos_token_id": end,
            "pad_token_id": end,
            "decoder": decoder,
        },
        "search": {"max_length": sizes.positions, "past_present_share_buffer": True, "do_sample": False},
    }


class OpenVino:
    """Its stateful model: the caches are variables of the request, as OpenVINO GenAI has them."""

    def __init__(self, model: str, sizes: Sizes, threads: int) -> None:
        openvino: Any = importlib.import_module("openvino")
        offline: Any = importlib.import_module("openvino._offline_transformations")

        core = openvino.Core()
        read = core.read_model(model)
        self._fixed = encoder_rows(sizes)
        names = {name: each for each in read.inputs for name in each.names if name.startswith("past")}
        pasts = {name: name.replace("past_key_values", "present") for name in names if name not in self._fixed}
        cache = [1, sizes.key_heads, -1, sizes.head]
        read.reshape({names[name]: cache for name in pasts})
        offline.apply_make_stateful_transformation(read, pasts)
        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        config |= {"KV_CACHE_PRECISION": "f32"}  # as the others have
        self._request = core.compile_model(read, "CPU", config).create_infer_request()
        self._tensor, self._sizes, self._length = openvino.Tensor, sizes, 0
        self._has_positions = any("position_ids" in each.names for each in read.inputs)

    def prefill(self, ids: Array) -> Array:
        self._request.reset_state()
        self._length = 0
        return self._run(ids)

    def place(self, length: int) -> None:
        if self._length != length:
            shape = (1, self._sizes.key_heads, length, self._sizes.head)
            for each in self._request.query_state():
                each.state = self._tensor(np.zeros(shape, np.float32))
            self._length = length

    def step(self) -> Array:
        return self._run(np.array([TOKEN]))

    def _run(self, ids: Array) -> Array:
        count, before = len(ids), self._length
        self._length += count
        given = {"input_ids": ids.astype(np.int64)[None], "attention_mask": np.ones((1, self._length), np.int64)}
        if self._has_positions:
            given["position_ids"] = before + np.arange(count)[None]
        self._request.infer({**given, **self._fixed}, share_inputs=True)
        made: Array = self._request.get_tensor("logits").data[0, -1].copy()
        return made


class LlamaCpp:
    def __init__(self, model: str, sizes: Sizes, threads: int) -> None:
        llama_cpp: Any = importlib.import_module("llama_cpp")

        self._llama, self._sizes = llama_cpp, sizes
        path = Path(model).with_suffix(".gguf")
        if not path.is_file():
            _write_gguf(Path(model), sizes, path)
        llama_cpp.llama_backend_init()
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = sizes.positions, 512, 512
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = 0  # float32, as the others have
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._length = 0

    def prefill(self, ids: Array) -> Array:
        self._llama.llama_memory_clear(self._memory, True)  # noqa: FBT003  it takes no names
        self._length = 0
        return self._run(ids)

    def place(self, length: int) -> None:
        if self._length < length:
            self.prefill(np.full(length, TOKEN))
        self._llama.llama_memory_seq_rm(self._memory, 0, length, -1)
        self._length = length

    def step(self) -> Array:
        return self._run(np.array([TOKEN]))

    def _run(self, ids: Array) -> Array:
        for begin in range(0, len(ids), 512):
            part = ids[begin : begin + 512]
            tokens = (self._llama.llama_token * len(part))(*map(int, part))
            if self._llama.llama_decode(self._context, self._llama.llama_batch_get_one(tokens, len(part))):
                raise RuntimeError("llama.cpp could not compute")
        self._length += len(ids)
        numbers = self._llama.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(numbers, (self._sizes.vocabulary,)).copy()


def _write_gguf(model: Path, sizes: Sizes, path: Path) -> None:
    """The same weights; those of four bits as Q4_0, which has such blocks and scales of float16."""
    gguf: Any = importlib.import_module("gguf")

    unfinished = path.with_suffix(".new")
    writer = gguf.GGUFWriter(str(unfinished), "qwen2")
    writer.add_context_length(sizes.positions)
    writer.add_embedding_length(sizes.width)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.key_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(sizes.vocabulary)
    writer.add_tokenizer_model("none")
    quant = gguf.GGMLQuantizationType.Q4_0 if sizes.bits else None
    for name, array in _tensors(onnx.load(str(model)), sizes):
        writer.add_tensor(name, array, raw_dtype=quant if array.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)


def _tensors(model: onnx.ModelProto, sizes: Sizes) -> Iterator[tuple[str, Array]]:
    held = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    products = [each for each in model.graph.node if each.op_type in ("MatMul", "MatMulNBits")]
    gains = [held[each.input[1]] for each in model.graph.node if each.op_type == "SimplifiedLayerNormalization"]
    gains += [held[each.input[2]] for each in model.graph.node if each.op_type == "SkipSimplifiedLayerNormalization"]
    biases = [held[each.input[1]] for each in model.graph.node if each.op_type == "Add" and each.input[1] in held]
    yield "token_embd.weight", next(held[each.input[0]] for each in model.graph.node if each.input[0] in held)
    yield "output_norm.weight", gains[-1]
    yield "output.weight", _rows(products[-1], held)
    ends = [sizes.width, sizes.width + sizes.key_width]
    for layer in range(sizes.layers):
        own = [_rows(each, held) for each in products[5 * layer : 5 * layer + 5]]
        for kind, weight, bias in zip("qkv", np.split(own[0], ends), np.split(biases[layer], ends), strict=True):
            yield f"blk.{layer}.attn_{kind}.weight", weight
            yield f"blk.{layer}.attn_{kind}.bias", bias
        yield f"blk.{layer}.attn_norm.weight", gains[2 * layer]
        yield f"blk.{layer}.ffn_norm.weight", gains[2 * layer + 1]
        for name, weight in zip(("attn_output", "ffn_gate", "ffn_up", "ffn_down"), own[1:], strict=True):
            yield f"blk.{layer}.{name}.weight", weight


def _rows(node: onnx.NodeProto, held: dict[str, Array]) -> Array:
    """(columns, depth) of float32, or the bytes of Q4_0."""
    if node.op_type == "MatMul":
        return np.ascontiguousarray(held[node.input[1]].T)
    packed = held[node.input[1]]
    columns, blocks, _ = packed.shape
    numbers = np.stack([packed & 15, packed >> 4], axis=-1).reshape(columns, blocks, BLOCK)
    halves = numbers[..., : BLOCK // 2] | numbers[..., BLOCK // 2 :] << 4
    scales = held[node.input[2]].astype(np.float16).reshape(columns, blocks, 1).view(np.uint8)
    return np.concatenate([scales, halves.astype(np.uint8)], axis=-1).reshape(columns, -1)
