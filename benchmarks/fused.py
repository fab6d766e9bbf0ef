"""Several variants of one model: fused, against a process for each, and against serving them alternately.

The variants are the model with every weight changed a little, each with its own seed. Where the file of a model only
fills its weights with one number, they are drawn. In each arrangement every variant has a client that sends its next
request as soon as it has the answer, so the number of open requests is equal:

- processes: a process for each variant at cpu:1, spread over the cores;
- alternating: one process with all variants, each at cpu:N, N being all cores;
- fused: one process, all slots at cpu:N.

The arrangements are interleaved, forth and back. The figures are requests a second; the 99th percentile of the time of
a request, NumPy array to NumPy array; and resident memory. Memory is the sum of the proportional set sizes of the
arrangement's processes, in which shared pages count once, with no other arrangement running. Bundles are tuned alike,
with --trials for the model and for each fused one (0: first candidates only).

Usage: python -m benchmarks.fused [--quick] [--out FILE] [--models A,B] [--slots 1,2,4,8] [--trials N] [--rounds N]
       [--seconds S] [--bundles FOLDER]
"""

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil

import fractune
from benchmarks.support import ours
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model
from fractune_core.files.bundles import SUFFIX

OF_PROCESSES_BAR, OF_IN_TURN_BAR, MEMORY_BAR, MEMORY_SLOTS = 0.95, 1.15, 0.6, 4
_NOISE = 0.05
"""of a weight, the standard deviation of its change"""
_SMALLEST = 16
"""elements: fewer are a scale or a shape, and no weights of a layer"""


@dataclass
class Arrangement:
    name: str
    processes: list[list[str]]
    """arguments of each"""
    waits_s: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    """by round"""
    resident_bytes: list[int] = field(default_factory=list)
    """by round"""

    def to_json(self) -> dict[str, Any]:
        return {
            "requests_per_s": statistics.median(self.per_s),
            "requests_per_s_of_rounds": self.per_s,
            "p50_s": float(np.percentile(self.waits_s, 50)),
            "p99_s": float(np.percentile(self.waits_s, 99)),
            "requests": len(self.waits_s),
            "resident_bytes": statistics.median(self.resident_bytes),
        }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models")
    parser.add_argument("--slots")
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--bundles", type=Path, help="a folder: bundles in it are taken, others made there")
    args = parser.parse_args()
    names = (args.models or ("magika" if args.quick else "squeezenet,magika")).split(",")
    counts = [int(count) for count in (args.slots or ("1,2" if args.quick else "1,2,4,8")).split(",")]
    rounds, seconds = args.rounds or (1 if args.quick else 4), args.seconds or (0.5 if args.quick else 3.0)
    data: dict[str, Any] = {"trials": args.trials, "seconds": seconds, "models": {}}
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        for name in names:
            tuned = _Tuned(find_model(name), (args.bundles or Path(folder)) / name, args.trials, max(counts))
            data["models"][name] = {}
            for count in counts:
                arrangements = tuned.arrangements(count)
                _time(arrangements, rounds, seconds)
                found = {each.name: each.to_json() for each in arrangements}
                data["models"][name][count] = found
                _print_row(name, count, found)
    data["bars"] = {"of_processes": OF_PROCESSES_BAR, "of_in_turn": OF_IN_TURN_BAR, "memory": MEMORY_BAR}
    data["ratios"] = ratios(data["models"])
    write_result("fused", args, data)
    print(f"fused: {_verdict(data['ratios'])}")


class _Tuned:
    """The variants of a model, and bundles of them: each alone, and fused."""

    def __init__(self, model: Model, folder: Path, trials: int, count: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._model, self._folder, self._trials = model, folder, trials
        self._cores = sorted(os.sched_getaffinity(0))
        self._variants = [variant_of(model, folder / f"v{seed}.onnx", seed) for seed in range(count)]
        self._alone = [self._bundle(each) for each in self._variants]

    def arrangements(self, count: int) -> list[Arrangement]:
        alone = [str(bundle) for bundle in self._alone[:count]]
        cores = ",".join(map(str, self._cores))
        at = [str(self._cores[number % len(self._cores)]) for number in range(count)]
        one_each = [["in_turn", core, bundle] for core, bundle in zip(at, alone, strict=True)]
        made = [Arrangement("processes", one_each), Arrangement("in_turn", [["in_turn", cores, *alone]])]
        if count > 1:
            made.append(Arrangement("fused", [["fused", cores, str(self._fused(count))]]))
        return made

    def _bundle(self, path: Path) -> Path:
        made = path.with_suffix(SUFFIX)
        if made.exists():
            return made
        shares = ",".join(dict.fromkeys(["cpu:1", f"cpu:{len(self._cores)}"]))
        model = Model(path.stem, path, inputs=self._model.inputs)
        options = ["--trials", str(self._trials)]
        return ours.tune(model, shares, self._folder / "state", self._folder, options).bundle

    def _fused(self, count: int) -> Path:
        out = self._folder / f"fused{count}.fused"
        fractune.fuse(self._variants[:count], inputs=self._model.inputs, out=out)
        return self._bundle(out)


def variant_of(model: Model, path: Path, seed: int) -> Path:
    """The model with its weights changed at random, as the file `path`; weights that the file only fills with one
    number are drawn, as large as those of a layer that keeps the size of what goes through it.
    """
    rng = np.random.default_rng(seed)
    net = onnx.load(model.path)
    for tensor in net.graph.initializer:
        numbers = onnx.numpy_helper.to_array(tensor)
        if numbers.dtype == np.float32 and numbers.size >= _SMALLEST:
            changed = numbers * rng.normal(1.0, _NOISE, numbers.shape).astype("float32")
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    shapes = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in net.graph.initializer}
    filled = [node for node in net.graph.node if node.op_type == "ConstantOfShape" and node.input[0] in shapes]
    for node in filled:
        shape = tuple(map(int, shapes[node.input[0]]))
        drawn = rng.normal(0.0, math.sqrt(2 / max(1, math.prod(shape[1:]))), shape).astype("float32")
        net.graph.initializer.append(onnx.numpy_helper.from_array(drawn, node.output[0]))
        net.graph.node.remove(node)
    onnx.save(net, path)
    return path


def _time(arrangements: Sequence[Arrangement], rounds: int, seconds: float) -> None:
    for number in range(rounds):
        for each in reversed(arrangements) if number % 2 else arrangements:
            with _started(each.processes) as processes:
                each.resident_bytes.append(sum(int(psutil.Process(p.pid).memory_full_info().pss) for p in processes))
                for process in processes:
                    _say(process, seconds)
                served = [json.loads(_line(process)) for process in processes]
            each.waits_s += [wait for one in served for wait in one["waits_s"]]
            each.per_s.append(sum(len(one["waits_s"]) / one["wall_s"] for one in served))


@contextlib.contextmanager
def _started(arguments_of: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes, all of them ready."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.support.serving_child", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for args in arguments_of
    ]
    try:
        for process in processes:
            _line(process)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _say(process: subprocess.Popen[str], seconds: float) -> None:
    if process.stdin is not None:
        process.stdin.write(f"{seconds}\n")
        process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    line = "" if process.stdout is None else process.stdout.readline()
    if not line:
        raise SystemExit("fused: a serving process ended; its output is above")
    return line


def ratios(models: dict[str, Any]) -> dict[str, dict[int, dict[str, float]]]:
    """Fused over the others, by model and slots: requests a second, p99, and memory over that of the processes."""
    return {
        name: {
            count: {
                **{
                    f"of_{other}": found["fused"]["requests_per_s"] / found[other]["requests_per_s"]
                    for other in ("processes", "in_turn")
                },
                "p99_of_processes": found["fused"]["p99_s"] / found["processes"]["p99_s"],
                "memory": found["fused"]["resident_bytes"] / found["processes"]["resident_bytes"],
            }
            for count, found in by_count.items()
            if "fused" in found
        }
        for name, by_count in models.items()
    }


def _verdict(found: dict[str, dict[int, dict[str, float]]]) -> str:
    every = [each for by_count in found.values() for each in by_count.values()]
    if not every:
        return "nothing was fused"
    memory = [by_count[MEMORY_SLOTS]["memory"] for by_count in found.values() if MEMORY_SLOTS in by_count]
    parts = [
        f"{_span([each['of_processes'] for each in every])} of the processes' requests/s (bar {OF_PROCESSES_BAR:g})",
        f"{_span([each['of_in_turn'] for each in every])} of alternating (bar {OF_IN_TURN_BAR:g})",
        f"{_span(memory)} of their memory with {MEMORY_SLOTS} slots (bar {MEMORY_BAR:g})" if memory else "",
    ]
    return "; ".join(filter(None, parts))


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.2f} .. {max(values):.2f}"


def _print_row(name: str, count: int, found: dict[str, Any]) -> None:
    for arrangement, each in found.items():
        print(
            f"{name:12} K={count}  {arrangement:10} {each['requests_per_s']:8.1f} requests/s  "
            f"p99 {each['p99_s'] * 1e3:8.2f} ms  {each['resident_bytes'] / 2**20:7.1f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
