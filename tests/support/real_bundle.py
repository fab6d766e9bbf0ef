"""Bundles of small models, compiled for real but not tuned, for tests of inference."""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fractune_core.files.fused import write_fused
from fractune_core.files.new_bundle import NewBundle
from fractune_core.shares import GrantedShare
from tests.support.denormals import compile_denormals
from tests.support.encoders import write_encoder
from tests.support.parts import CDIST, write_middle
from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import write_model

ENCODER, MEAN_OF_ALL = "encoder", "mean_of_all"
ENCODER_SHAPES = {ENCODER: [(1, 8), (1, 16), (2, 16)], MEAN_OF_ALL: [(1, 8), (1, 16)]}
"""batch and length of each bundle, by model"""
LISTENER_INPUTS: dict[str, list[int]] = {"sr=const:16000": []}


@dataclass(frozen=True)
class Small:
    """A small model, and a bundle that was compiled from it for this host."""

    model: Path
    bundle: Path


@dataclass(frozen=True)
class FusedVariants:
    """Two variants of the small model, and a bundle in which they have the first two of three slots."""

    models: tuple[Path, Path]
    bundle: Path


def compile_small(folder: Path) -> tuple[Path, Path]:
    """A small model and a bundle of it with the variants cpu:1, cpu:2 and untuned."""
    model = write_model(folder / "small.onnx")
    return model, compile_model(model, folder / "small.fractune")


def compile_small_for_a_machine(folder: Path) -> tuple[Path, Path]:
    """As `compile_small`, but TVM's virtual machine runs it, as it runs code for a GPU."""
    with mock.patch("fractune_workers.children.compiling.variants.in_arena", return_value=None):
        return compile_small(folder)


def compile_fused(folder: Path) -> tuple[list[Path], Path]:
    """Two variants of the small model, and a bundle in which they have the first two of three slots."""
    models = [write_model(folder / f"variant{seed}.onnx", seed=seed) for seed in (1, 2)]
    fused = folder / "variants.fused"
    with fused.open("wb") as file:
        write_fused(file, [model.stem for model in models], models, 3)
    return models, compile_model(fused, folder / "variants.fractune")


def compile_model(
    model: Path,
    out: Path,
    target: str = "",
    tuned: Sequence[str] | Mapping[str, Mapping[str, str]] = ("cpu:1", "cpu:2"),
    inputs: Mapping[str, list[int]] | None = None,
    *,
    optimized: bool = False,
    **changes: Any,
) -> Path:
    """A bundle with the variants `tuned`, which are not tuned, or have their traces by operator, and untuned; `inputs`
    are shapes of open inputs. Only with `optimized` LLVM optimizes its code.
    """
    from fractune_workers.children.compiling.child import compile_bundle
    from fractune_workers.children.tvm_api.target import host_device
    from tests.support.unoptimized import without_optimization

    shares = {f"cpu:{n}": GrantedShare(f"cpu:{n}", n, 2, "core", 1 << 30, reserved=False) for n in (1, 2)}
    manifest = {
        "model": {"name": model.name, "sha256": hashlib.sha256(model.read_bytes()).hexdigest()},
        "device": host_device().to_json(),
        "shares": {share: granted.to_json() for share, granted in shares.items()},
        **changes,
    }
    traces = tuned if isinstance(tuned, Mapping) else {}
    variants = [{"name": name, "traces": dict(traces.get(name, {}))} for name in dict.fromkeys((*tuned, "untuned"))]
    with nullcontext() if optimized else without_optimization():
        compile_bundle(str(model), dict(inputs or {}), target, variants, manifest, [], str(out))
    return out


def compile_encoders(folder: Path) -> None:
    """An encoder, and bundles of it for three shapes; another one that padding changes, and bundles for two."""
    for name, shapes in ENCODER_SHAPES.items():
        model = write_encoder(folder / f"{name}.onnx", mean_of_all=name == MEAN_OF_ALL)
        for batch, length in shapes:
            sizes = [batch, length]
            out = folder / f"{name}-{batch}x{length}.fractune"
            compile_model(model, out, tuned=["cpu:1"], inputs={"ids": sizes, "mask": sizes})


def write_listener(path: Path) -> Path:
    """A detector of speech: 64 samples, the state of the call before, and the rate, which is 16000; with metadata."""
    rng = np.random.default_rng(0)
    weights = {
        "rate": np.array(16000, "float32"),
        "flat": np.array([1, 32], "int64"),
        "deep": np.array([2, 1, 16], "int64"),
        "parts": np.array([32, 1], "int64"),
        "w": rng.normal(size=(96, 33)).astype("float32") / 5,
    }
    nodes = [
        helper.make_node("Cast", ["sr"], ["given_rate"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["given_rate", "rate"], ["scale"]),
        helper.make_node("Mul", ["input", "scale"], ["scaled"]),
        helper.make_node("Reshape", ["state", "flat"], ["before"]),
        helper.make_node("Concat", ["scaled", "before"], ["all"], axis=1),
        helper.make_node("MatMul", ["all", "w"], ["sums"]),
        helper.make_node("Tanh", ["sums"], ["values"]),
        helper.make_node("Split", ["values", "parts"], ["after", "mark"], axis=1),
        helper.make_node("Reshape", ["after", "deep"], ["stateN"]),
        helper.make_node("Sigmoid", ["mark"], ["output"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "listener",
        [
            info("input", TensorProto.FLOAT, [1, 64]),
            info("state", TensorProto.FLOAT, [2, 1, 16]),
            info("sr", TensorProto.INT64, []),
        ],
        [info("output", TensorProto.FLOAT, [1, 1]), info("stateN", TensorProto.FLOAT, [2, 1, 16])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
        doc_string="of one speaker",
    )
    described: dict[str, Any] = {"producer_name": "tests", "domain": "sound", "doc_string": "hears", "model_version": 3}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, **described)
    helper.set_model_props(model, {"names": "{0: 'quiet', 1: 'speech'}", "stride": "32", "character": "a\nb\nç"})
    onnx.save(model, path)
    return path


def compile_listener(folder: Path) -> None:
    """The detector, whose rate is a constant of the bundle."""
    compile_model(write_listener(folder / "listener.onnx"), folder / "listener.fractune", inputs=LISTENER_INPUTS)


def compile_parts(folder: Path) -> Path:
    """A model with an operator that cannot be imported, and a bundle of it in parts."""
    from fractune.features.parts.parts import cut_model, join_parts

    model, cut = write_middle(folder / "middle.onnx"), folder / "parts"
    cut.mkdir()
    parts = cut_model(model, {}, [CDIST], cut)
    bundles = [compile_model(own, folder / f"{own.stem}.fractune") for own in parts.own]
    join_parts(model, parts, bundles, NewBundle(folder / "middle.fractune"))
    return folder / "middle.fractune"


def compile_decoders(folder: Path) -> None:
    """Decoders with a cache: for two lengths and for chunks of a prompt, and by operators for a cache of all rows."""
    import fractune
    from tests.support.decoders import compile_decoder, write_decoder

    decoder = write_decoder(folder / "decoder.onnx")
    buckets = [compile_decoder(decoder, past, tokens) for past, tokens in ((16, 1), (240, 1), (240, 8))]
    fractune.join(buckets, out=folder / "decoder.fractune")
    for form, rows in (("grouped", 64), ("scatters", 32)):
        model = write_decoder(folder / f"{form}.onnx", **{form: True})
        buckets = [compile_decoder(model, rows, tokens, **{form: True}) for tokens in (1, 8)]
        fractune.join(buckets, out=folder / f"{form}.fractune")


MAKERS: dict[str, Callable[[Path], object]] = {
    "decoders": compile_decoders,
    "listener": compile_listener,
    "small": compile_small,
    "by_machine": compile_small_for_a_machine,
    "fused": compile_fused,
    "encoders": compile_encoders,
    "parts": compile_parts,
    "denormals": compile_denormals,
}
APART = ("small", "decoders")
"""what is not compiled where only others are asked for"""


def compiled(what: str, base: Path) -> Path:
    """The folder of a key of MAKERS, of a process of its own: the tests of inference run without the compiler. Once for
    all workers of a run, where one process compiles whatever they may ask for: most of its time goes into imports.
    `base`: of this worker.
    """
    kinds = [what]
    if "PYTEST_XDIST_WORKER" in os.environ:
        base, kinds = base.parent, kinds if what in APART else [each for each in MAKERS if each not in APART]
    with (base / f"{kinds[0]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / what).exists():
            subprocess.run([sys.executable, "-m", __name__, str(base), *kinds], check=True, cwd=REPOSITORY)
    return base / what


if __name__ == "__main__":
    for name in sys.argv[2:]:
        own = Path(sys.argv[1]) / name
        own.mkdir()
        MAKERS[name](own)
