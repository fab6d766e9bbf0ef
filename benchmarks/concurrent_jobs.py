"""Five jobs on one model at the same time, with overlapping shares: their searches, builds, measurements and duration.

The jobs run twice on a one-machine stack, each time from a fresh state: once sharing, as is the default, and once with
a separate namespace for each. The counts come from the log. `searches` are pairs of a job and an operator with trials
that the job requested. `builds` are builds of trials, distinguished by their CPU seconds. `trials` and `validations`
are measurements. `repeated` are trials of a candidate at a share at which it already had a trial in the same namespace.
The clock runs from the first submission to the end of the last job.

Usage: python -m benchmarks.concurrent_jobs [--quick] [--out FILE] [--model NAME] [--only TEXT] [--trials N]
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fractune
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.models import Model, find_model
from fractune_core.records import Kind, TuningRecord

JOBS = ("cpu:1", "cpu:2", "cpu:1,cpu:2", "cpu:1", "cpu:1,cpu:2")
"""the shares of each"""
SHARED, APART = "shared", "apart"
COLUMNS = ("searches", "builds", "trials", "validations", "repeated", "wall_s")
_ONLY = {"squeezenet": "conv2d3_,conv2d7_,conv2d11_,conv2d15_"}
"""its 3 x 3 convolutions"""
_MOST = 1_000_000
"""records of the log: all of them"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="squeezenet")
    parser.add_argument("--only", help="operators to tune, as of `fractune tune`")
    parser.add_argument("--trials", type=int, help="candidates of each job, over all operators")
    args = parser.parse_args()
    trials = args.trials or (8 if args.quick else 24)
    model = find_model(args.model)
    only = _ONLY.get(model.name, "") if args.only is None else args.only
    found = {way: _run(model, only, trials, way) for way in (SHARED, APART)}
    ratios = {name: found[SHARED][name] / found[APART][name] for name in COLUMNS if found[APART][name]}
    _print_table(found)
    data = {"model": model.name, "only": only, "trials": trials, "jobs": JOBS, "runs": found, "ratios": ratios}
    write_result("concurrent_jobs", args, data)
    ratios_text = ", ".join(f"{name} {ratios[name]:.2f}" for name in ("searches", "builds", "trials", "wall_s"))
    print(f"concurrent_jobs: {len(JOBS)} jobs that share, over the same that do not: {ratios_text}")


def _run(model: Model, only: str, trials: int, way: str) -> dict[str, Any]:
    """Counts, and seconds from the first submission to the last end."""
    print(f"{model.name}: {len(JOBS)} jobs, {way} ...", flush=True)
    namespaces = ["" if way == SHARED else f"job{number}" for number in range(len(JOBS))]
    with (
        tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder,
        fractune.local_stack("cpu:1,cpu:2", state=Path(folder) / "state") as client,
    ):
        started = time.monotonic()
        jobs = [
            client.submit(model.path, shares, trials=trials, only=only, inputs=model.inputs, namespace=namespace)
            for shares, namespace in zip(JOBS, namespaces, strict=True)
        ]
        ended = [job.wait() for job in jobs]
        wall_s = time.monotonic() - started
        records = [
            record
            for namespace in dict.fromkeys(namespaces)
            for record in client.log.query(namespace=namespace, limit=_MOST)
        ]
    own = [each.progress.candidates_done for each in ended]
    shared = [each.progress.candidates_shared for each in ended]
    walls_s = [each.wall_s for each in ended]
    return {**_counts(records), "wall_s": wall_s, "own": own, "shared": shared, "jobs_wall_s": walls_s}


def _counts(records: Sequence[TuningRecord]) -> dict[str, int]:
    trials = [record for record in records if record.kind is Kind.TRIAL]
    places = {(record.namespace, record.candidate_id, record.granted.key) for record in trials}
    return {
        "searches": len({(record.job, record.workload_hash) for record in trials}),
        "builds": len({(record.namespace, record.candidate_id, record.build_secs) for record in trials}),
        "candidates": len({(record.namespace, record.candidate_id) for record in trials}),
        "trials": len(trials),
        "validations": len(records) - len(trials),
        "repeated": len(trials) - len(places),
    }


def _print_table(found: dict[str, dict[str, Any]]) -> None:
    print(f"{len(JOBS)} jobs".ljust(12) + "".join(f"{name:>13}" for name in COLUMNS))
    for way, counts in found.items():
        print(way.ljust(12) + "".join(f"{counts[name]:>13.0f}" for name in COLUMNS))


if __name__ == "__main__":
    main()
