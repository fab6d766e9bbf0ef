"""A text encoder in one bundle for every length, beside ONNX Runtime and OpenVINO with open dimensions.

MiniLM is tuned for four lengths, which `--lengths auto` chooses for a sample of the lengths of SQuAD. Texts of such
lengths are served at each share: in a loop, and with Poisson arrivals at 30 % of ONNX Runtime's rate. The contenders
are confined alike and take turns; all get the same texts. The bundle is served as tuned, and as loaded after
`fractune compete`, where other runtimes run the lengths at which they were faster. The cost of tuning and the size of
the bundle are compared with those of the longest length alone.

Usage: python -m benchmarks.lengths [--quick] [--out FILE] [--trials N] [--shares cpu:1,cpu:2]
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import fractune
from benchmarks.support.lengths_contender import COMPETED, ONNX, OURS
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model
from benchmarks.support.ours import tune
from benchmarks.support.processes import import_path
from benchmarks.support.squad_lengths import draw_lengths
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import OPENVINO
from fractune_core.served import LOAD, poisson
from fractune_core.shares import Share
from fractune_workers.child import Child
from fractune_workers.confinement.cpu import CpuConfinement

WAYS = (OURS, COMPETED, ONNX, OPENVINO)
_AXIS = "input_ids:1"
_ROUNDS, _REQUESTS, _SAMPLE = 8, 40, 2000
_TIMEOUT_S = 600.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trials", type=int, default=128, help="of the longest length (default: %(default)s)")
    parser.add_argument("--shares", default="cpu:1,cpu:2", help="(default: %(default)s)")
    args = parser.parse_args()
    trials, rounds, requests = (0, 2, 8) if args.quick else (args.trials, _ROUNDS, _REQUESTS)
    model = find_model("minilm")
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as name:
        folder = Path(name)
        tuned = _tuned(model, args.shares, trials, folder)
        found = []
        for share in args.shares.split(","):
            found.append(_at(share, tuned["bundle"], model, rounds, requests))
            _print(found[-1])
        tuned = {name: each for name, each in tuned.items() if name != "bundle"}
    _report(args, tuned, found)


def _tuned(model: Model, shares: str, trials: int, folder: Path) -> dict[str, Any]:
    """Seconds and bytes of a bundle for four lengths, and of one for the longest, each with a log of its own."""
    sample = folder / "lengths.txt"
    sample.write_text("\n".join(map(str, draw_lengths(_SAMPLE, 0))), encoding="utf-8")
    options = ["--trials", str(trials), "--lengths", f"{_AXIS}=auto", "--sample", str(sample)]
    open_model = Model(model.name, model.path, model.kinds)
    print(f"fractune tune {' '.join(options)} ...", flush=True)
    four = tune(open_model, shares, folder / "four", folder / "four.fractune", options)
    bundle = Path(four.result["bundle"])
    lengths = [member.manifest["inputs"][0]["shape"][1] for member in Bundle(bundle).members]
    longest = ["--trials", str(trials), "--lengths", f"{_AXIS}={lengths[-1]}"]
    print(f"fractune tune {' '.join(longest)} ...", flush=True)
    one = tune(open_model, shares, folder / "one", folder / "one.fractune", longest)
    sizes = bundle.stat().st_size, (folder / "one.fractune").stat().st_size
    print("fractune compete ...", flush=True)
    began_s = time.monotonic()
    competed = fractune.compete(bundle, model.path, progress=False)
    return {
        "compete_s": time.monotonic() - began_s,
        "contests": [
            {"shape": each.shape, "share": each.share, **each.compared.to_json()} for each in competed.contests
        ],
        "bundle": bundle,
        "lengths": lengths,
        "padding": four.result["padding"],
        "trials": trials,
        "tuning_s": {"four": four.process.wall_s, "one": one.process.wall_s},
        "phases_s": {"four": four.phases_s, "one": one.phases_s},
        "bundle_bytes": {"four": sizes[0], "one": sizes[1], "competed": bundle.stat().st_size},
    }


def _at(share: str, bundle: Path, model: Model, rounds: int, requests: int) -> dict[str, Any]:
    """Seconds a request of each contender by turn, and latencies at 30 % load."""
    with ExitStack() as stack:
        children = {way: stack.enter_context(_contender(way, share, bundle, model)) for way in WAYS}
        differences = _differences(children)
        loops: dict[str, list[float]] = {way: [] for way in WAYS}
        latencies_s: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(rounds):
            lengths = draw_lengths(requests, 1 + turn)
            for way in WAYS[:: 1 if turn % 2 else -1]:
                found = children[way].call("serve", _TIMEOUT_S, lengths=lengths, arrivals_s=[None] * requests)
                loops[way].append(found["elapsed_s"] / requests)
            rate_per_s = LOAD / statistics.median(loops[ONNX])
            arrivals_s = poisson(rate_per_s, requests, random.Random(turn))
            for way in WAYS[:: 1 if turn % 2 else -1]:
                found = children[way].call("serve", _TIMEOUT_S, lengths=lengths, arrivals_s=arrivals_s)
                latencies_s[way] += found["latencies_s"]
    ways = {way: {"request_s": loops[way], **_percentiles(latencies_s[way])} for way in WAYS}
    best = min((ONNX, OPENVINO), key=lambda way: statistics.median(loops[way]))
    ratios = {way: slowdown(loops[way], loops[best], interleaved=True) for way in (OURS, COMPETED)}
    return {
        "share": share,
        "ways": ways,
        "best": best,
        "ratios": {way: [1 + ratio.median, 1 + ratio.low, 1 + ratio.high] for way, ratio in ratios.items()},
        "differences": differences,
    }


@contextmanager
def _contender(way: str, share: str, bundle: Path, model: Model) -> Iterator[Child]:
    confinement = CpuConfinement(Share.parse(share))
    given = [share, ",".join(map(str, confinement.cores)), way, str(bundle), str(model.path)]
    env = {"PYTHONPATH": import_path(), **confinement.environment()}
    child = Child("benchmarks.support.lengths_contender", given, env)
    try:
        yield child
    finally:
        child.stop()


def _differences(children: dict[str, Child]) -> dict[str, float]:
    """The largest difference of each contender's outputs to ONNX Runtime's, over the largest number."""
    found = dict.fromkeys(WAYS, 0.0)
    for length in (5, 77, 200):
        outputs = {way: child.call("outputs", _TIMEOUT_S, length=length) for way, child in children.items()}
        for way in WAYS:
            for mine, theirs in zip(outputs[way], outputs[ONNX], strict=True):
                most = max(map(abs, theirs))
                worst = max(abs(one - other) for one, other in zip(mine, theirs, strict=True))
                found[way] = max(found[way], worst / most)
    return found


def _percentiles(latencies_s: Sequence[float]) -> dict[str, float]:
    ranks = statistics.quantiles(latencies_s, n=100, method="inclusive")
    return {"p50_s": ranks[49], "p99_s": ranks[98]}


def _print(each: dict[str, Any]) -> None:
    print(f"minilm at {each['share']}, lengths of SQuAD")
    for name, way in each["ways"].items():
        rate = 1 / statistics.median(way["request_s"])
        p50, p99 = 1e3 * way["p50_s"], 1e3 * way["p99_s"]
        difference = each["differences"][name]
        print(f"  {name:<18} {rate:7.1f} requests/s   p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   differs {difference:.0e}")


def _report(args: argparse.Namespace, tuned: dict[str, Any], found: list[dict[str, Any]]) -> None:
    write_result("lengths", args, {"tuned": tuned, "load": LOAD, "found": found})
    cost = tuned["tuning_s"]["four"] / tuned["tuning_s"]["one"]
    size = tuned["bundle_bytes"]["four"] / tuned["bundle_bytes"]["one"]
    lines = [_line(each) for each in found]
    _print_phases(tuned)
    print(f"lengths: {'; '.join(lines)}; tuning {cost:.2f}x and bundle {size:.2f}x of one length's")


def _print_phases(tuned: dict[str, Any]) -> None:
    """Seconds of the first job and the mean of the others by phase, and those outside of jobs."""
    first, *others = tuned["phases_s"]["four"]
    for phase in first:
        print(f"  {phase:<12} {first[phase]:6.1f} s, each further length {_mean(others, phase):6.1f} s")
    for name, jobs in tuned["phases_s"].items():
        outside_s = tuned["tuning_s"][name] - sum(sum(each.values()) for each in jobs)
        print(f"  {name}: {tuned['tuning_s'][name]:.1f} s, {outside_s:.1f} s of them outside of jobs")


def _mean(jobs: Sequence[dict[str, float]], phase: str) -> float:
    return statistics.fmean(each.get(phase, 0.0) for each in jobs)


def _line(each: dict[str, Any]) -> str:
    best = each["ways"][each["best"]]
    texts = []
    for way, (middle, low, high) in each["ratios"].items():
        p99 = each["ways"][way]["p99_s"] / best["p99_s"]
        texts.append(f"{way} {middle:.2f} ({low:.2f} .. {high:.2f}) of {each['best']}'s time, p99 {p99:.2f}")
    return f"{each['share']}: {', '.join(texts)}"


if __name__ == "__main__":
    main()
