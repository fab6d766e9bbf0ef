"""The models that benchmarks tune, of the zoo or made here, and their heavy operators."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from benchmarks.support.made_models import save_dynamic_minilm, save_transformer, save_with_weights
from benchmarks.support.zoo import zoo
from fractune_workers.child import Child

INGEST_TIMEOUT_S = 300.0
MADE = Path(__file__).parents[2] / "build" / "models"
"""folder of the models that are made here"""


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
class _Made:
    """A model that is made here, of the file `source` where it has one."""

    save: Callable[[Path, Path], None]
    """writes it, from the source and to a file"""
    kinds: tuple[str, ...]
    inputs: dict[str, list[int]]
    source: Callable[[], Path] = Path
    trained: bool = False

    def model(self, name: str) -> Model:
        """Made once and kept."""
        path = MADE / f"{name}.onnx"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".new")
            self.save(self.source(), unfinished)
            unfinished.replace(path)
        return Model(name, path, self.kinds, self.inputs, self.trained)


def _large_light(name: str) -> _Made:
    """With its weights in the file: a small file may not compute so many."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return _Made(save_with_weights, ("conv2d",), {}, source=lambda: folder / f"light_{name}.onnx")


_MINILM = zoo()["minilm"]
_MADE: dict[str, _Made] = {
    "zfnet512": _large_light("zfnet512"),
    "bvlc_alexnet": _large_light("bvlc_alexnet"),
    # products in int8; the source has int8 weights and products in float32
    "minilm_dynamic": _Made(save_dynamic_minilm, ("matmul",), _MINILM.inputs, source=_MINILM.path, trained=True),
    "transformer": _Made(save_transformer, ("matmul",), {"ids": [1, 128], "mask": [1, 128]}),
}
_HEAVY = {
    "convolutional": ("conv2d",),
    "recurrent": ("matmul", "lstm"),
    "transformer": ("matmul",),
    "dense": ("matmul",),
    "graph": ("matmul",),
}
"""by kind of a model in the zoo: names in the operators that take nearly all of its time"""


def find_model(name: str) -> Model:
    """A model of the zoo, or one that is made here. Raises SystemExit for an unknown name, or where pip fails."""
    if name in _MADE:
        return _MADE[name].model(name)
    if name not in zoo():
        raise SystemExit(f"benchmarks: no model '{name}'; there are {', '.join([*zoo(), *_MADE])}")
    found = zoo()[name]
    kinds = dict.fromkeys(part for kind in found.kinds for part in _HEAVY.get(kind, ()))
    return Model(name, found.path(), tuple(kinds), found.inputs, found.trained)


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
    net = onnx.load(model.path)
    weights = {tensor.name for tensor in net.graph.initializer}
    (image,) = [value for value in net.graph.input if value.name not in weights]
    for dim in image.type.tensor_type.shape.dim[2:]:
        dim.dim_value = side
    del net.graph.value_info[:]
    path = folder / f"{model.path.stem}_{side}.onnx"
    onnx.save(net, path)
    return Model(f"{model.name}_{side}", path, model.kinds, model.inputs)
