"""Candidates of an operator, timed on random operands and on those of the model: do times or winners differ?

Operators are measured on random numbers. Inside a model they meet trained weights and the results of other operators.
Trained models are fetched from the package index. Others are made of operators that depend on their values: look-ups,
functions of the C library, divisions. The untuned bundle of each runs once on random inputs, and the arguments of its
operators with the most time are kept. On one core some candidates of each then run on three sets of arguments,
interleaved and in the same memory: random ones, others (A/A), and the model's. The figures: the time on the model's
over that on random ones, how well the two orders agree (Kendall's tau-b), and what the winner on random operands
loses, timed on the model's by other repeats than those that choose.

Usage: python -m benchmarks.operands [--quick] [--out FILE] [--models A,B] [--operators 6] [--candidates 4]
[--rounds 15]
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.call_cost import one_cpu
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model
from benchmarks.support.zoo import zoo
from fractune_core.analysis.noise import kendall_tau_b
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_core.files.bundles import Bundle
from fractune_core.operators import implementation_of
from fractune_core.records import UNTUNED, Status, TimingPolicy
from fractune_runtime.tvm_runtime.runtime import with_denormals
from tests.support.real_bundle import compile_model

_REPEAT_MS = 2.0
_RUNS = 5
_BEYOND = 1.03
"""Another winner counts if it loses more, with its interval"""
_FAR = 3.0
"""A candidate that takes longer than this times the fastest so far is left out: it cannot win"""
_BUILD_LIMIT_CPU_S = 60
_TRAINED = {
    "line classifier": "ocr5_classifier",
    "seizures": "seizure",
    "spindles": "spindle",
    "tashkeel": "tashkeel_bilstm",
    "detector": "ocr5_detection",
}
"""their names in the zoo"""
_VOCABULARY = 54
"""of tashkeel"""
_ROWS, _WIDTH, _FEW = 16384, 256, 512
_Feed = Callable[[np.random.Generator], dict[str, Any]]
_Draw = Callable[[np.random.Generator, Sequence[int]], Any]
_OF_ONE: dict[str, tuple[str, _Draw]] = {
    "exp of small numbers": ("Exp", lambda rng, shape: rng.normal(-90, 20, shape)),
    "tanh of large numbers": ("Tanh", lambda rng, shape: rng.normal(0, 10, shape)),
    "erf of large numbers": ("Erf", lambda rng, shape: rng.normal(0, 10, shape)),
    "softmax of large numbers": ("Softmax", lambda rng, shape: rng.normal(0, 100, shape)),
    "log of zeros": ("Log", lambda _rng, shape: np.zeros(shape)),
    "sigmoid of NaN and infinity": ("Sigmoid", lambda rng, shape: rng.choice([np.nan, np.inf, -np.inf], shape)),
    "sine of large numbers": ("Sin", lambda rng, shape: rng.normal(0, 1e6, shape)),
    "tangent of large numbers": ("Tan", lambda rng, shape: rng.normal(0, 1e6, shape)),
    "arc tangent of large numbers": ("Atan", lambda rng, shape: rng.normal(0, 1e6, shape)),
    "asinh of large numbers": ("Asinh", lambda rng, shape: rng.normal(0, 1e6, shape)),
}
"""models of one operator by name, and what they get"""
RANDOM, AGAIN, REAL = "random", "random again", "model"
SETS = RANDOM, AGAIN, REAL


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default="", help="only these, separated by commas")
    parser.add_argument("--operators", type=int, default=6, help="of a model, those with the most time (default: 6)")
    parser.add_argument("--candidates", type=int, default=4, help="of each operator (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="(default: %(default)s)")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as text:
        folder = Path(text)
        samples = [*_made(folder), *([] if args.quick else _trained())]
        wanted = args.models.split(",") if args.models else [sample.model.name for sample in samples]
        for sample in samples:
            if sample.model.name in wanted:
                with one_cpu():
                    rows.append(_row(sample, args, folder))
                print(_line(rows[-1]), flush=True)
                write_result("operands", args, {"rows": rows})


@dataclass(frozen=True)
class Sample:
    model: Model
    feed: _Feed
    """its inputs, as far as they are not those that a bundle draws"""


def _row(sample: Sample, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from fractune_workers.children.building.child import BuilderChild
    from fractune_workers.children.compiling.child import ingest
    from fractune_workers.children.recurrent.packing import with_plain_weights
    from fractune_workers.children.searching.child import SearcherChild
    from fractune_workers.children.tvm_api.target import host_cpu

    model = sample.model
    found = ingest(str(model.path), model.inputs, "", host_cpu())
    target, key = found["target"], found["target_key"]
    calls, model_s = _captured(sample, folder)
    builder, searcher = BuilderChild(), SearcherChild(1)
    rows = []
    known = [each for each in found["operators"] if each["name"] in calls]
    for each in sorted(known, key=lambda each: -each["weight"] * calls[each["name"]].secs)[: args.operators]:
        name, workload = each["name"], each["workload_hash"]
        described = builder.learn_workload(workload, each["workload"], target)
        call = calls[name]
        if len(call.operands) == len(described):
            call.operands = with_plain_weights(call.operands, described)
        if [[*array.shape] for array in call.operands] != [shape for _, _, shape, *_ in described]:
            print(f"{model.name}: {name} has other arguments inside the model; left out", flush=True)
            continue
        searcher.open(workload, each["workload"], target, key, 0, [], [])
        proposed = searcher.propose(workload, key, 2 if args.quick else args.candidates)
        built = {
            trace: builder.build(workload, target, trace, _BUILD_LIMIT_CPU_S)
            for trace in [UNTUNED, *(item["trace"] for item in proposed)]
        }
        codes = {trace: made["object"] for trace, made in built.items() if made["status"] == Status.OK.value}
        timed = _timed(described, call.operands, codes, 3 if args.quick else args.rounds)
        rows.append({"name": name, "weight": each["weight"], "inside_s": call.secs, **_summary(timed), **_values(call)})
        _print(model.name, rows[-1])
    return {"model": model.name, "model_s": model_s, "operators": rows}


@dataclass
class _Call:
    """A kernel's calls in the model."""

    operands: list[Any]
    """arrays, as the first call takes them"""
    secs: float = math.inf
    """the fastest call"""


def _captured(sample: Sample, folder: Path) -> tuple[dict[str, _Call], float]:
    """The kernels of the untuned model by name, and the seconds of all of them."""
    import tvm_ffi
    import tvm_ffi_orcjit

    from fractune_runtime.cpu import OnCpu
    from fractune_runtime.tvm_runtime.drawing import random_inputs
    from fractune_runtime.tvm_runtime.tensors import specs_of

    path = folder / f"{sample.model.name}.fractune"
    # TVM's virtual machine shows the operands of each call.
    with mock.patch("fractune_workers.children.compiling.variants.in_arena", return_value=None):
        bundle = Bundle(compile_model(sample.model.path, path, tuned=(), inputs=sample.model.inputs, optimized=True))
    backend, specs = OnCpu(bundle, None), specs_of(bundle.manifest["inputs"])
    given = random_inputs(specs)
    given |= {name: array.astype(given[name].dtype) for name, array in sample.feed(np.random.default_rng(0)).items()}
    inputs = backend.arguments(specs, given)
    objects = list(bundle.objects("untuned"))
    module = tvm_ffi_orcjit.default_session().load_module(objects)
    machine = module["vm_load_executable"]()
    machine["vm_initialization"](1, 0, 2)
    weights = backend.load_variant("untuned").weights
    calls: dict[str, _Call] = {}
    began: list[float] = []

    def instrument(*event: Any) -> int:
        """TVM calls it with the function, its name, whether it is about to be called, its result, and its arguments."""
        _, name, before, _, *given = event
        if name.startswith(("vm.", "main")):
            return 0
        if before:
            if name not in calls and all(hasattr(each, "__dlpack__") for each in given):
                calls[name] = _Call([np.from_dlpack(each).copy() for each in given])
            began.append(time.thread_time())
        elif began:
            secs = time.thread_time() - began.pop()
            if name in calls:
                calls[name].secs = min(calls[name].secs, secs)
        return 0

    machine["set_instrument"](tvm_ffi.convert(instrument))
    run = with_denormals(machine["main"], kept=False)
    for _ in range(_RUNS):
        run(*inputs, *weights)
    machine["set_instrument"](None)
    start = time.thread_time()
    for _ in range(_RUNS):
        run(*inputs, *weights)
    return calls, (time.thread_time() - start) / _RUNS


_Secs = dict[str, list[float]]
"""of a candidate, by set of operands"""


def _timed(
    described: Sequence[Any], operands: Sequence[Any], codes: Mapping[str, bytes], rounds: int
) -> dict[str, _Secs]:
    """By candidate: seconds on each set of operands, in rounds, each in the other order."""
    from fractune_workers.children.layouts.kernels.packing import own_arguments
    from fractune_workers.children.tvm_api.arrays import random_args
    from fractune_workers.children.tvm_api.artifacts import load_objects
    from fractune_workers.children.tvm_api.processor import cpu_processor

    processor = cpu_processor()
    arrays = {
        name: [arg.numpy() for arg in random_args(list(described), seed, processor)]
        for seed, name in enumerate((RANDOM, AGAIN))
    }
    arrays[REAL] = list(operands)
    policy = TimingPolicy("operands", warmups=0, repeats=1, min_repeat_ms=_REPEAT_MS)
    found: dict[str, _Secs] = {}
    fastest = math.inf
    for trace, code in codes.items():
        kernel = load_objects([code])
        own = {name: own_arguments(implementation_of(trace), each, described) for name, each in arrays.items()}
        # All sets in the same memory: kernels may be twice as slow where tensors lie badly to each other.
        tensors = [processor.tensor(array) for array in own[RANDOM]]

        def time_one(name: str, calls: int, kernel: Any = kernel, own: Any = own, tensors: Any = tensors) -> float:
            for tensor, array in zip(tensors, own[name], strict=True):
                processor.write(tensor, array)
            (secs,) = with_denormals(processor.time, kept=False)(kernel, tensors, policy, calls)
            return secs

        first = time_one(RANDOM, 1)
        if first > _FAR * fastest:
            continue
        fastest = min(fastest, first)
        calls = {name: max(1, math.ceil(1.2 * _REPEAT_MS * 1e-3 / time_one(name, 1))) for name in SETS}
        secs: _Secs = {name: [] for name in SETS}
        for turn in range(rounds):
            for name in SETS[turn % 3 :] + SETS[: turn % 3]:
                secs[name].append(time_one(name, calls[name]))
        found[trace] = secs
    return found


def _summary(timed: Mapping[str, _Secs]) -> dict[str, Any]:
    medians = {name: {trace: statistics.median(secs[name]) for trace, secs in timed.items()} for name in SETS}
    best = min(timed, key=medians[RANDOM].__getitem__)
    return {
        "secs": list(timed.values()),
        "ratio": _ratio(timed[best][REAL], timed[best][RANDOM]),
        "ratio_aa": _ratio(timed[best][AGAIN], timed[best][RANDOM]),
        "ratios": [_ratio(secs[REAL], secs[RANDOM]) for secs in timed.values()],
        "ratios_aa": [_ratio(secs[AGAIN], secs[RANDOM]) for secs in timed.values()],
        "tau": kendall_tau_b(medians[RANDOM], medians[REAL]),
        "tau_aa": kendall_tau_b(medians[RANDOM], medians[AGAIN]),
        "lost": _lost(timed, RANDOM, REAL),
        "lost_aa": _lost(timed, AGAIN, RANDOM),
    }


def _ratio(secs: Sequence[float], others: Sequence[float]) -> list[float]:
    found = slowdown(secs, others, interleaved=True)
    return [1 + found.median, 1 + found.low, 1 + found.high]


def _lost(timed: Mapping[str, _Secs], chosen_by: str, true: str) -> list[float]:
    """Time of the winner on one set of operands over that of the winner on the true ones, on these, by other rounds
    than those that choose.
    """
    choosing = {name: {trace: statistics.median(secs[name][::2]) for trace, secs in timed.items()} for name in SETS}
    mine, best = (min(timed, key=choosing[name].__getitem__) for name in (chosen_by, true))
    return _ratio(timed[mine][true][1::2], timed[best][true][1::2])


def _values(call: _Call) -> dict[str, Any]:
    """Parts of the operands' numbers that are zero, denormal, and not finite; of all but the last one, the output."""
    floats = [each.ravel().astype("float32") for each in call.operands[:-1] if each.dtype.kind == "f"]
    numbers = np.concatenate(floats) if floats else np.zeros(1, "float32")
    size = np.abs(numbers)
    small = (size > 0) & (size < np.finfo("float32").tiny)
    return {
        "zeros": float(np.mean(numbers == 0)),
        "denormal": float(np.mean(small)),
        "odd": float(np.mean(~np.isfinite(numbers))),
        "largest": float(size[np.isfinite(size)].max(initial=0)),
    }


def _print(model: str, row: Mapping[str, Any]) -> None:
    def text(ratio: Sequence[float]) -> str:
        return f"{ratio[0]:.3f} ({ratio[1]:.3f}..{ratio[2]:.3f})"

    tau, tau_aa = ("-" if row[each] is None else f"{row[each]:.2f}" for each in ("tau", "tau_aa"))
    print(
        f"{model[:20]:<21}{row['name'][:36]:<37}{1e6 * row['inside_s']:7.0f} us x{row['weight']:<3} "
        f"ratio {text(row['ratio'])}, A/A {text(row['ratio_aa'])}; tau {tau}, A/A {tau_aa}; "
        f"lost {text(row['lost'])}, A/A {text(row['lost_aa'])}; "
        f"zeros {row['zeros']:.2f}, denormal {row['denormal']:.4f}",
        flush=True,
    )


def _line(row: Mapping[str, Any]) -> str:
    operators = row["operators"]
    if not operators:
        return f"{row['model']}: no operators"

    def total(name: str) -> float:
        return float(
            sum(each["weight"] * min(statistics.median(secs[name]) for secs in each["secs"]) for each in operators)
        )

    beyond = sum(each["lost"][1] > _BEYOND for each in operators)
    return (
        f"{row['model']}: {len(operators)} operators, time on the model's operands {total(REAL) / total(RANDOM):.3f}, "
        f"A/A {total(AGAIN) / total(RANDOM):.3f}, other winners {beyond}"
    )


def _trained() -> list[Sample]:
    found = []
    for name, known_as in _TRAINED.items():
        each = zoo()[known_as]
        feed = _tokens if "input_ids" in each.inputs else _nothing
        found.append(Sample(Model(name, each.path(), inputs=each.inputs), feed))
    return found


def _tokens(rng: np.random.Generator) -> dict[str, Any]:
    return {"input_ids": rng.integers(0, _VOCABULARY, (1, 64))}


def _nothing(_rng: np.random.Generator) -> dict[str, Any]:
    return {}


def _made(folder: Path) -> list[Sample]:
    """Operators that may depend on their values, one model each."""
    table, few, wide = [_ROWS, _WIDTH], [_FEW, _WIDTH], [256, 1024]
    looked_up = [
        ("gather", "Gather", {"x": table, "ids": [_FEW]}, few, {}),
        ("gather elements", "GatherElements", {"x": table, "ids": few}, few, {}),
        ("scatter elements", "ScatterElements", {"x": table, "ids": few, "u": few}, table, {"reduction": "add"}),
        ("scatter nd", "ScatterND", {"x": table, "ids": [_FEW, 1], "u": few}, table, {"reduction": "add"}),
    ]
    samples = []
    for name, operator, inputs, output, attributes in looked_up:
        for rows in (_ROWS, 2):
            feed = partial(_indices, inputs["ids"], rows)
            made = helper.make_node(operator, list(inputs), ["y"], **attributes)
            samples.append(_sample(folder, f"{name} of {rows} rows", [made], inputs, output, feed))
    for name, (operator, draw) in _OF_ONE.items():
        made = helper.make_node(operator, ["x"], ["y"])
        samples.append(_sample(folder, name, [made], {"x": wide}, wide, partial(_numbers, draw, wide)))
    pair = {"x": wide, "z": wide}
    power = helper.make_node("Pow", ["x", "z"], ["y"])
    rest = helper.make_node("Mod", ["x", "z"], ["y"], fmod=1)
    divided = helper.make_node("Div", ["x", "z"], ["y"])
    product = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MatMul", ["r", "z"], ["y"])]
    square = {"x": [256, 1024], "z": [1024, 256]}
    return [
        *samples,
        _sample(
            folder,
            "power",
            [power],
            pair,
            wide,
            lambda rng: {"x": rng.uniform(0, 100, wide), "z": rng.normal(0, 5, wide)},
        ),
        _sample(folder, "remainder", [rest], pair, wide, lambda rng: {"x": rng.normal(0, 1e6, wide)}),
        _sample(
            folder,
            "division of integers",
            [divided],
            pair,
            wide,
            lambda rng: {"x": rng.integers(0, 1 << 60, wide), "z": rng.integers(1, 1 << 20, wide)},
            TensorProto.INT64,
        ),
        _sample(folder, "product with zeros", product, square, [256, 256], lambda rng: {"x": rng.normal(-2, 1, wide)}),
        _sample(
            folder,
            "product with NaN",
            product,
            square,
            [256, 256],
            lambda rng: {"z": rng.choice([np.nan, np.inf, 1.0], [1024, 256])},
        ),
    ]


def _indices(shape: Sequence[int], rows: int, rng: np.random.Generator) -> dict[str, Any]:
    return {"ids": rng.integers(0, rows, shape)}


def _numbers(draw: _Draw, shape: Sequence[int], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": draw(rng, shape)}


def _sample(
    folder: Path,
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    output: Sequence[int],
    feed: _Feed,
    kind: int = TensorProto.FLOAT,
) -> Sample:
    """Inputs named `ids` are indices."""
    given = [
        helper.make_tensor_value_info(each, TensorProto.INT64 if each == "ids" else kind, shape)
        for each, shape in inputs.items()
    ]
    graph = helper.make_graph(nodes, "operands", given, [helper.make_tensor_value_info("y", kind, output)])
    path = folder / f"{name.replace(' ', '_')}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return Sample(Model(name, path), feed)


if __name__ == "__main__":
    main()
