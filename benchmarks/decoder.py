"""Decoders with a cache beside other runtimes, confined alike: prompts, and steps with some tokens in the cache.

The models have random weights in the shapes of known ones: Qwen2.5 0.5B in float32 and 4 bits, the decoder of Whisper
base, and one of Marian. `--layers` cuts the first to some of its 24 layers: all are alike, and the time goes by their
number. fractune's bundles are tuned without a search. The runtimes take turns, one prompt or a few steps at a time;
the median of each counts, or with `--clock cpu` the least CPU time, for a machine that does other things too. Under a
CPU limit, steps take turns of ten periods without a rest, so that the limit stops who uses it up. There the mean of all
steps counts, which is that of tokens a second, and the longest step is printed too.

llama.cpp computes the last layer and the logits behind the last token alone, where the files give the logits behind
each: with few layers its prompts take a small part of the time.

Peers beside ONNX Runtime lie in folders below `--peers`: `genai` (onnxruntime-genai), `llama` (llama-cpp-python and
gguf) and `openvino`. Make one by `pip install --target FOLDER/genai onnxruntime-genai`. OpenVINO GenAI takes models of
its own format, which only its exporter writes. What it runs are OpenVINO's stateful models, and those the package
`openvino` alone makes of the ONNX files too.

The logits of all runtimes, behind a prompt and a step, are compared with ONNX Runtime's.

Usage: python -m benchmarks.decoder [--quick] [--out FILE] [--models A,B] [--layers N] [--shares cpu:1,cpu:2,cpu:1500m]
[--peers FOLDER] [--bundles FOLDER] [--rounds N] [--clock wall|cpu] [--first-candidates] [--table FILE]
"""

import argparse
import json
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.support import ours
from benchmarks.support.decoder_contender import GENAI, LLAMA, ONNX, OPENVINO, OURS, READING
from benchmarks.support.decoders import MODELS, Sizes, in_bits, write_decoder
from benchmarks.support.first_bundle import write_first_bundle
from benchmarks.support.limit_cgroup import limit_cgroup, set_limit
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import MADE, Model
from benchmarks.support.processes import import_path
from fractune_core.errors import FractuneError, first_line
from fractune_core.shares import Share
from fractune_workers.child import Child
from fractune_workers.confinement.cpu import CpuConfinement

_TIMEOUT_S = 600.0
_STEPS, _UNDER_LIMIT_S = 8, 1.0
"""of one turn: steps at least, and seconds at least under a CPU limit"""
_FOLDERS = {GENAI: "genai", OPENVINO: "openvino", LLAMA: "llama"}
_PACKAGES = {GENAI: "onnxruntime_genai", OPENVINO: "openvino", LLAMA: "llama_cpp"}
_LANGUAGE_ONLY = (GENAI, LLAMA)
_ORDER = (OURS, ONNX, GENAI, OPENVINO, LLAMA)
"""without the process that reads memory"""
_LIMIT = "m"
"""the end of a share that is a CPU limit"""


@dataclass(frozen=True)
class _Case:
    name: str
    sizes: Sizes
    prompts: tuple[int, ...]
    lengths: tuple[int, ...]
    """tokens in the cache of a step"""

    @property
    def shapes(self) -> list[dict[str, list[int]]]:
        """Those of each bucket."""
        tokens = sorted({1, *self.prompts})
        rows = self.lengths if self.sizes.source else (self.sizes.positions,)
        return [self.sizes.shapes(count, each) for each in rows for count in tokens]

    @property
    def options(self) -> list[str]:
        """Sizes for `fractune tune`: a language model has one cache of all rows, another one for each length."""
        tokens = "|".join(map(str, sorted({1, *self.prompts})))
        if not self.sizes.source:
            rows = self.sizes.positions
            sizes = [f"past={rows}", f"total_sequence_length={rows}", f"tokens={tokens}"]
        else:
            sizes = [f"past={'|'.join(map(str, self.lengths))}", f"tokens={tokens}"]
        return [option for each in [*sizes, "batch=1"] for option in ("--size", each.replace("|", ","))]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", default="qwen,qwen4bit,whisper,marian", help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="of qwen; 24 is all (default: %(default)s)")
    parser.add_argument("--shares", default="cpu:1,cpu:2", help="(default: %(default)s)")
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="folder of peers (default: ./peers)")
    keeps = "where models and bundles are kept, and made if they are missing (default: %(default)s)"
    parser.add_argument("--bundles", type=Path, default=MADE / "decoders", help=keeps)
    rounds_help = "turns of each runtime; 0 makes the bundles alone (default: %(default)s)"
    parser.add_argument("--rounds", type=int, default=7, help=rounds_help)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="(default: %(default)s)")
    parser.add_argument("--table", type=Path, help="write the table of docs/performance.md here")
    more = "bundles of first candidates that nothing measured: their quality is not that of a bundle"
    parser.add_argument("--first-candidates", action="store_true", help=more)
    args = parser.parse_args()
    rounds = 1 if args.quick else args.rounds
    rows: list[dict[str, Any]] = []
    for name in args.models.split(",")[: 1 if args.quick else None]:
        case = _case(name, 1 if args.quick else args.layers)
        model, bundle = _made(case, args)
        if not rounds:
            continue
        for share in args.shares.split(",")[: 1 if args.quick else None]:
            rows += _at(share, case, model, bundle, args.peers.resolve(), rounds, args.clock)
            write_result("decoder", args, {"clock": args.clock, "layers_of_qwen": args.layers, "rows": rows})
    if not rounds:
        return
    if args.table:
        args.table.write_text("\n".join(_table(rows)) + "\n", encoding="utf-8")
    print(f"decoder: {'; '.join(_lines(rows))}")


def _case(name: str, layers: int) -> _Case:
    if name in ("qwen", "qwen4bit"):
        sizes = in_bits(replace(MODELS["qwen"], layers=layers), 4 if name == "qwen4bit" else 0)
        return _Case(f"{name}{layers}", sizes, (128, 512), (128, 1024))
    if name not in MODELS:
        raise SystemExit(f"decoder: no model '{name}'; there are qwen, qwen4bit, whisper and marian")
    return _Case(name, MODELS[name], (64,), (128, 384))


def _made(case: _Case, args: argparse.Namespace) -> tuple[Path, Path]:
    """The ONNX file and the bundle, made once and kept."""
    folder = args.bundles.resolve() / case.name
    model = folder / f"{case.name}.onnx"
    if not model.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_decoder(model, case.sizes)
    whole = sorted({"cpu:1", "cpu:2", *(each for each in args.shares.split(",") if not each.endswith(_LIMIT))})
    kind = "first-" if args.quick or args.first_candidates else ""
    bundle = folder / f"{kind}{'-'.join(each.replace(':', '') for each in whole)}.fractune"
    if not bundle.is_file():
        if args.quick or args.first_candidates:
            write_first_bundle(model, case.shapes, [int(each.removeprefix("cpu:")) for each in whole], bundle)
            return model, bundle
        print(f"{case.name}: fractune tune {' '.join(case.options)} --trials 0 ...", flush=True)
        options = [*case.options, "--trials", "0"]
        tuned = ours.tune(Model(case.name, model), ",".join(whole), folder / "state", folder, options)
        print(f"{case.name}: a first bundle after {tuned.process.wall_s:.0f} s", flush=True)
        tuned.bundle.replace(bundle)
    return model, bundle


def _at(
    share: str, case: _Case, model: Path, bundle: Path, peers: Path, rounds: int, clock: str
) -> Iterator[dict[str, Any]]:
    """A row for each prompt and each length: seconds of each runtime, and why others are missing."""
    with _contender(READING, share, case, model, peers) as reading:
        gb_per_s = reading.call("gb_per_s", _TIMEOUT_S)
    print(f"{case.name} at {share}: {gb_per_s:.1f} GB/s are read at most", flush=True)
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        skipped: dict[str, str] = {}
        for way in _ORDER:
            try:
                given = stack.enter_context(_contender(way, share, case, bundle if way == OURS else model, peers))
                given.call("prefill", _TIMEOUT_S, count=case.prompts[0])
                children[way] = given
            except (FractuneError, _MissingError) as error:
                skipped[way] = first_line(error)
                print(f"  {way} is skipped: {first_line(error)}", flush=True)
        differs = _differences(children, case.prompts[0])
        for count in case.prompts:
            secs = _turns(children, rounds, "prefill", count=count)
            yield _row(share, case, f"prompt {count}", secs, clock, skipped, differs)
        for length in case.lengths:
            at_least_s = _UNDER_LIMIT_S if share.endswith(_LIMIT) else 0
            secs = _turns(children, rounds, "steps", at=length, count=_STEPS, at_least_s=at_least_s)
            row = _row(share, case, f"step at {length}", secs, clock, skipped, differs)
            read_bytes = case.sizes.weight_bytes + case.sizes.cache_bytes(length)
            yield {**row, "gb_per_s": gb_per_s, "part_of_roof": read_bytes / row["secs"][OURS] / 1e9 / gb_per_s}


def _turns(children: Mapping[str, Child], rounds: int, call: str, **sizes: float) -> dict[str, list[dict[str, float]]]:
    """Seconds of each runtime, which take turns; the first calls, which allocate memory, do not count."""
    secs: dict[str, list[dict[str, float]]] = {way: [] for way in children}
    for child in children.values():
        child.call(call, _TIMEOUT_S, **sizes)
    for turn in range(rounds):
        for way in list(children)[:: 1 if turn % 2 else -1]:
            secs[way] += children[way].call(call, _TIMEOUT_S, **sizes)
    return secs


class _MissingError(Exception):
    """A peer that is not installed, or that does not have such models."""


@contextmanager
def _contender(way: str, share: str, case: _Case, path: Path, peers: Path) -> Iterator[Child]:
    if way in _LANGUAGE_ONLY and case.sizes.source:
        raise _MissingError("it takes no decoder of an encoder with random inputs")
    folder = peers / _FOLDERS.get(way, "")
    if way in _FOLDERS and not (folder / _PACKAGES[way]).is_dir():
        raise _MissingError(f"no package {_PACKAGES[way]} in {folder}; install it there with pip install --target")
    env = {"PYTHONPATH": os.pathsep.join([*([str(folder)] if way in _FOLDERS else []), import_path()])}
    with ExitStack() as stack:
        cores, cgroup = "", ""
        if share.endswith(_LIMIT):
            limit_m = int(share.removeprefix("cpu:").removesuffix(_LIMIT))
            held = stack.enter_context(limit_cgroup("decoder", f"-{(*_ORDER, READING).index(way)}"))
            set_limit(held, limit_m)
            cgroup, threads = str(held), math.ceil(limit_m / 1000)
        else:
            confinement = CpuConfinement(Share.parse(share))
            cores, threads = ",".join(map(str, confinement.cores)), len(confinement.cores)
            env |= confinement.environment()
        child = Child(
            "benchmarks.support.decoder_contender",
            [way, share, cores, cgroup, str(threads), str(path), json.dumps(asdict(case.sizes))],
            env,
        )
        stack.callback(child.stop)
        yield child


def _row(
    share: str,
    case: _Case,
    what: str,
    secs: Mapping[str, Sequence[Mapping[str, float]]],
    clock: str,
    skipped: Mapping[str, str],
    differs: Mapping[str, float],
) -> dict[str, Any]:
    in_loop = share.endswith(_LIMIT) and what.startswith("step")
    figure = statistics.fmean if in_loop else min if clock == "cpu" else statistics.median
    figures = {way: figure([each[f"{clock}_s"] for each in found]) for way, found in secs.items()}
    longest = {way: max(each["wall_s"] for each in found) for way, found in secs.items()}
    others = {way: each for way, each in figures.items() if way != OURS}
    best = min(others, key=lambda way: others[way])
    row = {
        "model": case.name,
        "share": share,
        "what": what,
        "secs": figures,
        "longest_s": longest,
        "best": best,
        "speedup": others[best] / figures[OURS],
        "all": secs,
        "skipped": skipped,
        "differences": differs,
    }
    times = ", ".join(
        f"{way} {1e3 * each:.2f} ms" + (f" (longest {1e3 * longest[way]:.1f})" if in_loop else "")
        for way, each in figures.items()
    )
    print(f"{case.name} at {share}, {what}: {times}: {row['speedup']:.2f} of the speed of {best}", flush=True)
    return row


def _differences(children: Mapping[str, Child], count: int) -> dict[str, float]:
    """The largest difference of each runtime's logits to ONNX Runtime's, over the largest one."""
    found = {way: child.call("logits", _TIMEOUT_S, count=count) for way, child in children.items()}
    theirs = found[ONNX]
    most = max(map(abs, theirs))
    return {
        way: max(abs(one - other) for one, other in zip(each, theirs, strict=True)) / most
        for way, each in found.items()
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Milliseconds of each runtime in Markdown."""
    yield f"| model | share | what | {' | '.join(_ORDER)} | best peer / fractune |"
    yield "|---|---|---|" + "---|" * (len(_ORDER) + 1)
    for row in rows:
        cells = [f"{1e3 * row['secs'][way]:.2f} ms" if way in row["secs"] else "-" for way in _ORDER]
        yield f"| {row['model']} | {row['share']} | {row['what']} | {' | '.join(cells)} | {row['speedup']:.2f} |"


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For each model and share the geometric means of prompts and steps."""
    for model, share in dict.fromkeys((row["model"], row["share"]) for row in rows):
        own = [row for row in rows if (row["model"], row["share"]) == (model, share)]
        parts = [f"steps read {100 * max(row.get('part_of_roof', 0) for row in own):.0f} % of the bandwidth"]
        for kind in ("prompt", "step"):
            ratio = statistics.geometric_mean([row["speedup"] for row in own if row["what"].startswith(kind)])
            parts.append(f"{kind}s {ratio:.2f}")
        apart = ", ".join(f"{way} {part:.0e}" for way, part in own[0]["differences"].items() if way != ONNX)
        yield f"{model} at {share}: {', '.join(parts)} of the best peer's speed; logits differ by {apart}"


if __name__ == "__main__":
    main()
