"""Each kind of operator beside its roof, and the slowest operators beside OpenVINO's (oneDNN's) layers.

Each model is tuned at one core without a search. An operator's part of its roof is that of `fractune show`: what the
share's arithmetic and memory allow over what it takes. Kinds come in the order of the time above their roof, so the
first one is worth the most work. Nothing is known of the roof of operators that the caches limit.

OpenVINO runs the same model on the same core, and says how long each of its layers takes: the least of many inferences.
An operator and a layer are paired by the shapes of their convolution. Both have their activation fused. Channels are
compared as they fill blocks of ours.

Usage: python -m benchmarks.kernels [--quick] [--out FILE] [--models A,B] [--most 30]
"""

import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.support import ours
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model, operators_of

SHARE = "cpu:1"
_MODELS = "ocr5_classifier,ocr5_detection,ocr_recognition,squeezenet,crnn,speech_embedding"
_INFERENCES = 40
_PACKED_DENSE, _PACKED_DEPTHWISE = 6, 4
"""axes of weights: K/b, C/s, R, S, s, b and C/b, R, S, b"""


class Convolution(NamedTuple):
    """What an operator and a layer have in common."""

    kernel: tuple[int, ...]
    inner: int
    """input channels of a group"""
    outer: int
    extents: tuple[int, ...]
    """of the output"""

    @property
    def kind(self) -> str:
        size = "x".join(map(str, self.kernel))
        return f"depthwise {size}" if self.inner == 1 else f"convolution {size}"


def convolution_of(shapes: Sequence[Sequence[int]]) -> Convolution | None:
    """From the shapes of an operator's arguments, the output last; None for other operators."""
    output = shapes[-1]
    for weights in shapes[1:-1]:
        if len(output) != _PACKED_DENSE - 1:
            return None
        if len(weights) == _PACKED_DENSE and weights[5] == output[4]:
            return Convolution(
                tuple(weights[2:4]),
                filled(weights[1] * weights[4], weights[5]),
                weights[0] * weights[5],
                tuple(output[2:4]),
            )
        if len(weights) == _PACKED_DEPTHWISE and weights[3] == output[4]:
            return Convolution(tuple(weights[1:3]), 1, weights[0] * weights[3], tuple(output[2:4]))
    return None


def layer_of(image: Sequence[int], weights: Sequence[int], output: Sequence[int], lanes: int) -> Convolution:
    """From the shapes of a layer: (N, C, H, W), (K, C, R, S) or (groups, K, C, R, S), and (N, K, H, W)."""
    groups = weights[0] if len(weights) > len(image) else 1
    inner = image[1] // groups
    return Convolution(
        tuple(weights[-2:]), inner if inner == 1 else filled(inner, lanes), filled(output[1], lanes), tuple(output[2:])
    )


def filled(channels: int, lanes: int) -> int:
    return math.ceil(channels / lanes) * lanes


def kinds(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The operators by kind: `secs` (with their weights), and of those with a known roof `known_s` and `roof_part`."""
    found: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["kind"]].append(row)
    table = []
    for kind, members in found.items():
        known = [each for each in members if each["roof_part"]]
        known_s = sum(each["secs"] for each in known)
        least_s = sum(each["secs"] * each["roof_part"] for each in known)
        table.append(
            {
                "kind": kind,
                "operators": len(members),
                "secs": sum(each["secs"] for each in members),
                "known_s": known_s,
                "roof_part": least_s / known_s if known_s else None,
            }
        )
    return sorted(table, key=lambda each: -each["known_s"] * (1 - (each["roof_part"] or 1)))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default=_MODELS, help="(default: %(default)s)")
    parser.add_argument(
        "--most", type=int, default=30, help="operators beside OpenVINO's layers (default: %(default)s)"
    )
    args = parser.parse_args()
    names = ["squeezenet"] if args.quick else args.models.split(",")
    rows: list[dict[str, Any]] = []
    for name in names:
        rows += _rows(find_model(name))
        write_result("kernels", args, {"kinds": kinds(rows), "operators": rows})
    paired = sorted((each for each in rows if each["openvino_s"]), key=lambda each: -each["secs"])[: args.most]
    print_tables(kinds(rows), paired)


def print_tables(by_kind: Sequence[Mapping[str, Any]], paired: Sequence[Mapping[str, Any]]) -> None:
    print("\n| kind | operators | all their time | with a known roof | part of the roof |\n|---|---|---|---|---|")
    for each in by_kind:
        part = "" if each["roof_part"] is None else f"{each['roof_part']:.0%}"
        print(
            f"| {each['kind']} | {each['operators']} | {each['secs'] * 1e6:.0f} us | {each['known_s'] * 1e6:.0f} us "
            f"| {part} |"
        )
    print("\n| model | operator | ours | of its roof | OpenVINO | its kernel | ratio |\n|---|---|---|---|---|---|---|")
    for each in paired:
        part = f"{each['roof_part']:.0%}" if each["roof_part"] else ""
        print(
            f"| {each['model']} | {each['text']} | {each['alone_s'] * 1e6:.1f} us | {part} "
            f"| {each['openvino_s'] * 1e6:.1f} us | {each['primitive']} | {each['alone_s'] / each['openvino_s']:.2f} |"
        )
    ratios = [math.log(each["alone_s"] / each["openvino_s"]) for each in paired]
    if ratios:
        print(f"kernels: {math.exp(sum(ratios) / len(ratios)):.2f} of OpenVINO's time over {len(ratios)} operators")


def _rows(model: Model) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        tuned = ours.tune(model, SHARE, Path(folder) / "state", Path(folder) / "out", ["--trials", "0"])
    shapes = _shapes(model)
    known = {name: convolution_of(each) for name, each in shapes.items()}
    lanes = max((each[-1][-1] for name, each in shapes.items() if known[name]), default=1)
    layers = _layers(model, lanes)
    rows = []
    for each in tuned.result["operators"]:
        alone_s, name = each["best_s"].get(SHARE), each["workload_hash"]
        if not alone_s or not each["weight"]:
            continue
        convolution = known[name]
        secs, primitive = layers.get(convolution, (None, "")) if convolution else (None, "")
        rows.append(
            {
                "model": model.name,
                "name": each["name"],
                "kind": convolution.kind if convolution else _plain_kind(each["name"]),
                "text": _text(convolution) if convolution else each["name"],
                "weight": each["weight"],
                "alone_s": alone_s,
                "inside_s": each["inside_s"].get(SHARE),
                "secs": each["weight"] * alone_s,
                "roof_part": each["roof_part"].get(SHARE),
                "openvino_s": secs,
                "primitive": primitive,
            }
        )
    return rows


def _shapes(model: Model) -> dict[str, list[tuple[int, ...]]]:
    """Of each operator's arguments, by its workload hash."""
    from fractune_core.operators import DIRECT
    from fractune_workers.children.tvm_api.traces import args_of, read_workloads

    found = {}
    for operator in operators_of(model):
        described = args_of(read_workloads(operator.workload)[DIRECT])
        found[operator.workload_hash] = [tuple(map(int, each[2])) for each in described]
    return found


def _plain_kind(name: str) -> str:
    from fractune_server.scheduler.finalists import operator_kind

    return operator_kind(name)


def _text(convolution: Convolution) -> str:
    rows, columns = convolution.extents
    return f"{convolution.kind}, {convolution.inner} to {convolution.outer} channels, {rows} x {columns}"


def _layers(model: Model, lanes: int) -> dict[Convolution, tuple[float, str]]:
    """Seconds and the kernel of OpenVINO's convolutions on this process's first core; empty where it is missing."""
    try:
        import openvino
    except ImportError:
        return {}
    import numpy as np

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        core = openvino.Core()
        net = core.read_model(model.path)
        if model.inputs:
            net.reshape(model.inputs)
        options = {"PERF_COUNT": True, "INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(net, "CPU", options)
        request, draws = compiled.create_infer_request(), np.random.default_rng(0)
        feed = {
            at: draws.random(tuple(port.shape)).astype(port.element_type.to_dtype())
            for at, port in enumerate(compiled.inputs)
        }
        secs: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(_INFERENCES):
            request.infer(feed)
            for layer in request.get_profiling_info():
                secs[layer.node_name].append(layer.real_time.total_seconds())
        found = {}
        for layer in compiled.get_runtime_model().get_ordered_ops():
            facts = layer.get_rt_info()
            if facts["layerType"].astype(str) == "Convolution":
                shapes = [list(port.get_partial_shape().to_shape()) for port in (*layer.inputs()[:2], layer.output(0))]
                if all(len(each) >= len(shapes[0]) == 4 for each in shapes):
                    key = layer_of(shapes[0], shapes[1], shapes[2], lanes)
                    found[key] = min(secs[layer.get_friendly_name()]), facts["primitiveType"].astype(str)
        return found
    finally:
        os.sched_setaffinity(0, cores)


if __name__ == "__main__":
    main()
