"""The peer: stock TVM MetaSchedule on the operators and target that a job of ours would tune, or on the plain ones.

Only settings that a comparison needs are changed: the tasks, the trials, the size of a round, and the threads of the
search. The builder imports TVM's intrinsics before its clock starts. Runner, search, cost model and task scheduler are
TVM's defaults. The model is prepared like ours, so that both sides begin with the same workloads. With --plain only its
import is ours, and TVM's own pipeline derives its operators (`plain_child.py`). Run it in a separate process: python -m
benchmarks.support.stock MODEL --out FILE [--plain] [--only A,B] [--share cpu:2] [--target cuda:sm_90] [--trials 384]
[--round 64] [--seed 1]. It has no --quick: benchmarks.vs_stock runs it.

On a GPU it builds on all cores. Its kernels run in the share that its environment sets: all of the GPU, a MIG instance,
or a share of MPS. It cannot use a green context, because it launches on CUDA's default stream.

A round's results arrive together, when all of it is measured; their times are that moment.
"""

import argparse
import contextlib
import importlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.support.models import Model, find_model
from benchmarks.support.processes import run_timed
from benchmarks.support.runs import Run
from benchmarks.support.trajectory import Trial
from fractune_core.jobs import JobSpec
from fractune_core.shares import Share
from fractune_workers.confinement import confinement_for

_NO_TORCH = 'raise ModuleNotFoundError("PyTorch is kept out of this process", name="torch")\n'


def tune(
    model: Model,
    share: str,
    only: str,
    trials: int,
    round_size: int,
    seed: int,
    target: str = "",
    *,
    is_plain: bool = False,
) -> Run:
    """Tune in a fresh process, to its end. `target`: as of `fractune tune`; empty for this host's processor.
    `is_plain`: the model from TVM's own pipeline; `only` then names its operators.
    """
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        out = Path(folder) / "stock.json"
        command = [sys.executable, "-m", "benchmarks.support.stock", model.name, "--share", share, "--only", only]
        command += ["--trials", str(trials), "--round", str(round_size), "--seed", str(seed), "--out", str(out)]
        command += ["--target", target] if target else []
        command += ["--plain"] if is_plain else []
        with _held_to(Share.parse(share)) as environment:
            ended = run_timed(command, env={**environment, **without_torch(Path(folder) / "no-torch")})
        report = json.loads(out.read_text())
    found = [Trial(at, name, math.inf if secs is None else secs, trace) for at, name, secs, trace in report["trials"]]
    return Run(ended, report["tuning_began"], report["weights"], found, report["failures"])


def without_torch(folder: Path) -> dict[str, str]:
    """The environment in which no process can import PyTorch; `folder` holds a module that refuses.

    TVM's FFI imports PyTorch wherever it is installed, also in each process that stock TVM starts for builds and runs.
    The import takes seconds and sets up CUDA. Our own processes do without it (`tvm_api/keep_out.py`).
    """
    folder.mkdir()
    (folder / "torch.py").write_text(_NO_TORCH, encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))}


@contextlib.contextmanager
def _held_to(share: Share) -> Iterator[dict[str, str]]:
    """The environment that holds stock TVM to the share; its requirements stay as long as the block.

    Raises SystemExit for a share that no environment can hold a process to.
    """
    if share.mechanism == "cpu":
        # As many threads as the share has cores: the kernels are timed by a process that TVM starts.
        yield {"TVM_NUM_THREADS": str(share.cores)}
        return
    if share.mechanism == "green":
        raise SystemExit(f"benchmarks: stock TVM cannot be held to {share}; take full, mps:PERCENT or mig:PROFILE")
    confinement = confinement_for(share)
    confinement.probe()
    try:
        yield confinement.environment()
    finally:
        confinement.leave()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--plain", action="store_true", help="the operators that TVM's own pipeline makes")
    parser.add_argument("--only", default="", help="operators, as `fractune tune --only` takes them")
    parser.add_argument("--share", default="cpu:2")
    parser.add_argument("--target", default="", help="as `fractune tune --target` takes it; needed for a GPU")
    parser.add_argument("--trials", type=int, default=384, help="over all operators")
    parser.add_argument("--round", type=int, default=64, help="candidates a round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="write the JSON here")
    args = parser.parse_args()
    model = find_model(args.model)
    share = Share.parse(args.share)
    cores = share.cores if share.mechanism == "cpu" else len(os.sched_getaffinity(0))
    tasks = _tasks(model, args.only, cores, args.target, is_plain=args.plain)
    with tempfile.TemporaryDirectory(prefix="stock-tvm-") as work_dir:
        report = _search(tasks, cores, work_dir, args.trials, args.round, args.seed)
    args.out.write_text(json.dumps(report))


def _tasks(model: Model, only: str, cores: int, target_text: str, *, is_plain: bool) -> list[Any]:
    """MetaSchedule's own tasks of the model as we import it, for the target named, or this host's own."""
    from tvm.s_tir import meta_schedule as ms

    from benchmarks.support.plain_child import plain
    from fractune_workers.children.importing.model_file import load_model
    from fractune_workers.children.importing.passes import prepare
    from fractune_workers.children.tvm_api.target import default_target, parse_target

    spec = JobSpec(model="", model_name=model.name, shares=(), only=only)
    target = parse_target(target_text, cores) if target_text else default_target(cores)
    imported = load_model(model.path, model.inputs, recurrences=target.kind.name == "llvm")
    module = plain(imported, target) if is_plain else prepare(imported, target)
    return [task for task in ms.relax_integration.extract_tasks(module, target) if spec.wants(str(task.task_name))]


def _search(tasks: list[Any], cores: int, work_dir: str, trials: int, round_size: int, seed: int) -> dict[str, Any]:
    """Tune the tasks; when tuning began, the weights by workload hash, every trial, and failures by their cause."""
    from tvm.s_tir import meta_schedule as ms

    from fractune_workers.children.importing.passes import direct_hash

    names = [direct_hash(task.dispatched[0]) for task in tasks]
    weights: Counter[str] = Counter()
    for name, task in zip(names, tasks, strict=True):
        weights[name] += int(task.weight)
    firsts = [names.index(name) for name in weights]
    measured: list[Any] = []
    failures: Counter[str] = Counter()
    began = time.time()
    contexts, _ = ms.relax_integration.extracted_tasks_to_tune_contexts(
        [tasks[index] for index in firsts], work_dir=work_dir, num_threads=cores, seed=seed
    )
    ms.tune.tune_tasks(
        tasks=contexts,
        task_weights=[float(weight) for weight in weights.values()],
        work_dir=work_dir,
        max_trials_global=trials,
        num_trials_per_iter=round_size,
        # Every round begins with new compiler processes, which import TVM's intrinsics within the time limit of
        # their first build. On a slow machine that alone takes longer, and not one build would come through.
        builder=ms.builder.LocalBuilder(initializer=_import_intrinsics),
        # The watch comes first, so that the time of TVM's own callbacks does not count against TVM.
        measure_callbacks=[_watch(list(weights), measured, failures), *ms.MeasureCallback.create("default")],
    )
    return {"tuning_began": began, "weights": weights, "trials": measured, "failures": failures}


def _import_intrinsics() -> None:
    importlib.import_module("tvm.s_tir.tensor_intrin")  # for its registrations


def _watch(names: list[str], measured: list[Any], failures: Counter[str]) -> Any:
    """A callback that appends every candidate to `measured`: moment, workload hash, median (None = failed), trace.

    `failures` counts the causes of those that failed.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    from fractune_workers.children.tvm_api.traces import write_trace

    @derived_object
    class Watch(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        def apply(
            self, _scheduler: Any, task_id: int, candidates: list[Any], builds: list[Any], runs: list[Any]
        ) -> None:
            now = time.time()
            for candidate, build, run in zip(candidates, builds, runs, strict=True):
                error = build.error_msg or run.error_msg
                failures.update([str(error).strip().splitlines()[0]] if error else [])
                secs = statistics.median(map(float, run.run_secs)) if run.run_secs else None
                measured.append([now, names[task_id], secs, write_trace(candidate.sch.trace)])

    return Watch()


if __name__ == "__main__":
    main()
