"""The cost of one call of a tiny model, beside ONNX Runtime's: `run` with its `run`, `bind` with its `IOBinding`.

The model is a ReLU of 16 numbers, so a call is nearly all cost. Both runtimes have one thread, on one CPU. Ours
follows its limits. The four calls are timed interleaved, and the least of many rounds is the figure. Usage:
python -m benchmarks.call_cost [--quick] [--out FILE]
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import fractune
from benchmarks.support.machine import arguments, write_result
from tests.support.real_bundle import compile_model

LIMIT_US = 10.0
_NUMBERS = 16
_CALLS = 500
"""in one round of one kind of call: 2 to 5 ms"""


def main() -> None:
    args = arguments(__doc__).parse_args()
    found = call_costs_us(4 if args.quick else 200)
    for name, cost_us in found.items():
        print(f"{name:<24}{cost_us:>8.2f} us")
    write_result("call_cost", args, {"calls_us": found, "numbers": _NUMBERS, "bar_us": LIMIT_US})
    print(f"call_cost: {found['run']:.1f} us (bar {LIMIT_US:g}), ONNX Runtime {found['onnxruntime run']:.1f} us")


def call_costs_us(rounds: int) -> dict[str, float]:
    """Microseconds of a call, by its kind."""
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder, one_cpu():
        calls = _calls(Path(folder))
        best = {name: _secs(call) for name, call in calls.items()}
        for _ in range(rounds):
            best = {name: min(best[name], _secs(call)) for name, call in calls.items()}
    return {name: 1e6 * secs for name, secs in best.items()}


@contextmanager
def one_cpu() -> Iterator[None]:
    """Keep the calling thread on the last of its CPUs; the first ones get most interrupts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _calls(folder: Path) -> dict[str, Callable[[], Any]]:
    path = _relu(folder / "relu.onnx")
    model = fractune.load(compile_model(path, folder / "relu.fractune", optimized=True))
    inputs = model.random_inputs()
    bound = model.bind()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, bind in (("x", binding.bind_ortvalue_input), ("y", binding.bind_ortvalue_output)):
        bind(name, onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(_NUMBERS, "float32")))
    return {
        "run": lambda: model.run(inputs),
        "onnxruntime run": lambda: session.run(None, inputs),
        "bind": bound.run,
        "onnxruntime IOBinding": lambda: session.run_with_iobinding(binding),
    }


def _relu(path: Path) -> Path:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [_NUMBERS]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def _secs(call: Callable[[], Any]) -> float:
    """Seconds of one of many calls."""
    call()
    start = time.perf_counter()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter() - start) / _CALLS


if __name__ == "__main__":
    main()
