"""A model with an operator that cannot be imported, in parts, beside ONNX Runtime with the whole model.

A 3x3 convolution in the middle of YOLOv8n becomes a deformable one (DeformConv), as in the networks of "Deformable
ConvNets v2" (arXiv 1811.11168): a convolution makes its offsets. The importer refuses DeformConv, so ONNX Runtime runs
it, and the convolutions around it are tuned. The promise is at most 1.05 of ONNX Runtime's time.

Usage: python -m benchmarks.parts [--quick] [--out FILE] [--shares cpu:1,cpu:2] [--trials N] [--repeats 15]
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

import fractune
from benchmarks.compete import timed_as_loaded
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import find_model
from fractune.text.text import time_text

_OPSET = 19
_PLACE = 8
"""of the convolution, among those of 3x3"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--shares", default="cpu:1,cpu:2", help="(default: %(default)s)")
    parser.add_argument("--trials", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=15, help="(default: %(default)s)")
    args = parser.parse_args()
    repeats = 6 if args.quick else args.repeats
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as name:
        folder = Path(name)
        plain, out = find_model("yolov8n"), folder / "deformable.fractune"
        model = _deformable(plain.path, folder / "deformable.onnx")
        options: dict[str, Any] = {"inputs": plain.inputs, "state": folder / "state", "progress": False}
        result = fractune.tune(model, args.shares, trials=args.trials, out=out, **options)
        if result.stages is None or result.competed is None:
            raise SystemExit("parts: the model was imported whole; take another operator")
        steps = [each.operators or "own code" for each in result.stages.steps]
        found = {
            each.share: timed_as_loaded(out, model, each.share, each.compared, repeats)
            for each in result.competed.contests
        }
    for share, each in found.items():
        times = ", ".join(f"{name} {time_text(secs)}" for name, secs in each["median_s"].items())
        print(f"{share}: {times}; loaded: {each['choice']}")
    write_result("parts", args, {"trials": args.trials, "steps": steps, "shares": found})
    print(f"parts: {'; '.join(_line(share, each) for share, each in found.items())}")


def _deformable(model: Path, path: Path) -> Path:
    """YOLOv8n with one deformable convolution."""
    made = version_converter.convert_version(onnx.load(model), _OPSET)
    weights = {each.name: each for each in made.graph.initializer}
    threes = [node for node in made.graph.node if node.op_type == "Conv" and list(_attribute(node)) == [3, 3]]
    node = threes[_PLACE]
    place = list(made.graph.node).index(node)
    channels = weights[node.input[1]].dims[1]
    rng = np.random.default_rng(0)
    offsets = rng.normal(0, 1e-3, (18, channels, 3, 3)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(offsets, "offset_weights"))
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    deformable = helper.make_node(
        "DeformConv", [*node.input[:2], "offsets", *node.input[2:]], node.output, name="deformable", **attributes
    )
    made.graph.node.insert(
        place, helper.make_node("Conv", [node.input[0], "offset_weights"], ["offsets"], **attributes)
    )
    made.graph.node.remove(node)
    made.graph.node.insert(place + 1, deformable)
    onnx.save(made, path)
    return path


def _attribute(node: onnx.NodeProto) -> Any:
    return next((each.ints for each in node.attribute if each.name == "kernel_shape"), ())


def _line(share: str, each: Mapping[str, Any]) -> str:
    paced, loop = (each["ratios"][kind]["ratio"] for kind in ("paced", "loop"))
    return (
        f"{share}: {paced[0]:.2f} ({paced[1]:.2f} .. {paced[2]:.2f}) of ONNX Runtime's time for paced requests, "
        f"{loop[0]:.2f} ({loop[1]:.2f} .. {loop[2]:.2f}) in a loop"
    )


if __name__ == "__main__":
    main()
