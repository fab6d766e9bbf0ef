"""Whole models: the variants of a bundle, timed interleaved at the share of this process."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fractune_core.analysis.at_load import AtLoad
from fractune_core.cpu_limits import LimitSize
from fractune_core.files.bundles import Bundle
from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT, WITH_GRAPHS
from fractune_core.served import LOAD, poisson
from fractune_core.shares import Share
from fractune_workers.children.measuring.at_load import ROUNDS, Finalist, here, interleaved, time_at_load
from fractune_workers.children.measuring.loops import Call, call_of, secs_of_one
from fractune_workers.children.tvm_api.arrays import difference, random_args
from fractune_workers.children.tvm_api.bundle_runs import load_variant, outputs_of, weights_of
from fractune_workers.children.tvm_api.processor import Processor
from fractune_workers.children.tvm_api.serving_thread import serving_thread

# Whole models under the CPU limit of this process: each variant with as many threads as the cores it was tuned at.
#
# A limit stops a model for a part of each period. So a loop lasts for several periods, and so do the requests of a
# round.

_LOOP_PERIODS, _PACED_PERIODS = 5, 10
"""of a round"""
_FEWEST_REQUESTS, _MOST_REQUESTS = 10, 200
"""of a round: with 100 in all there is a p99"""
_MOST_S = 120.0
"""of the requests to all finalists together"""
_FEWEST_ROUNDS = 6
"""an interval needs six"""


def time_under_limit(
    calls: Mapping[str, Call], threads: Mapping[str, int], cpus: Collection[int], period_s: float
) -> list[AtLoad]:
    """The variants `threads`, with their numbers of threads on `cpus`, interleaved: in a loop, then at 30 % of the rate
    of the fastest. All answer requests with the same arrivals. A slow model has fewer requests.
    """
    with ExitStack() as held:
        finalists = []
        for name, count in threads.items():
            run = held.enter_context(serving_thread(count, cpus))
            # A model with a pool is called from another thread, as in a service.
            placed = (run, calls[name]) if count == 1 else (here, partial(run, calls[name]))
            # The next one begins with the whole limit.
            finalists.append(Finalist(name, count, *placed, rest_s=period_s))
        for each, _ in interleaved(finalists, ROUNDS):
            each.loop_secs.append(each.time_loop(_LOOP_PERIODS * period_s))
        rate_per_s = LOAD / min(statistics.median(each.loop_secs) for each in finalists)
        rounds, draws = ROUNDS, random.Random(0)
        requests = min(_MOST_REQUESTS, max(_FEWEST_REQUESTS, round(rate_per_s * _PACED_PERIODS * period_s)))
        affordable = int(rate_per_s * _MOST_S / len(finalists))
        if requests * rounds > affordable:
            rounds, requests = _FEWEST_ROUNDS, max(1, affordable // _FEWEST_ROUNDS)
        arrivals_s = [poisson(rate_per_s, requests, draws) for _ in range(rounds)]
        for each, number in interleaved(finalists, rounds):
            each.answer(arrivals_s[number])
        for each in finalists:
            del each.loop_secs[rounds:]
    return [each.found for each in finalists]


_SLOW_S, _FEW_REPEATS = 0.1, 4
"""A variant that takes longer is timed less often"""
_VERY_SLOW_S = 1.0
"""A variant that takes longer is timed once, in the run that gives its outputs: it is the untuned one, and
far behind."""


def time_variants(path: Path, repeats: int, own: str, processor: Processor) -> dict[str, Any]:
    """Time every variant of a bundle on the same random inputs, one repeat each a round. Then time the fastest and the
    variant `own` at 30 % load.

    Variants with CUDA graphs are left out under a green context.

    Returns `run_secs` (seconds of one inference, `repeats` of them, of a slow variant fewer) and `max_error` (largest
    difference to the untuned output, over that output's largest value) by variant. `at_load` is from `time_at_load`.
    """
    model = _loaded(path, processor, Share.parse(own))
    counts = {name: _repeats(secs, repeats) for name, secs in model.first_s.items()}
    run_secs = {name: [secs] if counts[name] == 1 else [] for name, secs in model.first_s.items()}
    for _ in range(repeats):
        for name, call in model.calls.items():
            if len(run_secs[name]) < counts[name]:
                run_secs[name].append(secs_of_one(call))
    loop_s = {name: statistics.median(secs) for name, secs in run_secs.items()}
    cpus = () if processor.is_gpu else sorted(os.sched_getaffinity(0))
    at_load = time_at_load(model.calls, loop_s, own, cpus)
    return {"run_secs": run_secs, "max_error": model.errors, "at_load": [each.to_json() for each in at_load]}


def time_variants_under(limit: Share, path: Path, processor: Processor) -> dict[str, Any]:
    """As `time_variants`, under the CPU limit of this process. Each variant for whole cores, or without them the robust
    one, has a thread for each of its cores; the untuned one has a thread for each CPU.
    """
    model, cpus = _loaded(path, processor, limit), sorted(os.sched_getaffinity(0))
    threads = {str(share): share.cores for share in limit.kernel_shares if str(share) in model.calls}
    period_s = LimitSize.parse(limit.size).period_ms * 1e-3
    at_load = time_under_limit(model.calls, threads or {ROBUST_VARIANT: len(cpus)}, cpus, period_s)
    return {
        "run_secs": {
            UNTUNED_VARIANT: [secs_of_one(model.calls[UNTUNED_VARIANT], period_s) for _ in range(_FEW_REPEATS)],
            **{each.variant: each.loop_secs for each in at_load},
        },
        "max_error": model.errors,
        "at_load": [each.to_json() for each in at_load],
    }


@dataclass(frozen=True)
class _Loaded:
    """The variants of a bundle by name, after one inference of each on the same random inputs."""

    calls: dict[str, Call]
    first_s: dict[str, float]
    errors: dict[str, float]
    """largest difference to the untuned output, over that output's largest value"""


def _loaded(path: Path, processor: Processor, share: Share) -> _Loaded:
    bundle = Bundle(path)
    inputs = [["TENSOR", spec["dtype"], spec["shape"]] for spec in bundle.manifest["inputs"]]
    arguments, weights = random_args(inputs, 0, processor), weights_of(bundle, processor)
    runs_graphs = share.kind.serves  # a graph is captured on a stream of its own, outside of a green context
    names = [each["name"] for each in bundle.variants if runs_graphs or not each["name"].endswith(WITH_GRAPHS)]
    mains = {name: load_variant(bundle, name, weights, processor) for name in names}
    outputs, first_s = {}, {}
    for name, main in mains.items():
        start = time.perf_counter()
        outputs[name] = outputs_of(main(*arguments), processor)
        first_s[name] = time.perf_counter() - start
    reference = outputs[UNTUNED_VARIANT]
    return _Loaded(
        calls={name: call_of(main, arguments, processor) for name, main in mains.items()},
        first_s=first_s,
        errors={name: max(map(difference, out, reference)) for name, out in outputs.items()},
    )


def _repeats(first_s: float, most: int) -> int:
    if first_s > _VERY_SLOW_S:
        return 1
    return min(most, _FEW_REPEATS) if first_s > _SLOW_S else most
