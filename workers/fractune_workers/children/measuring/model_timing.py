"""Whole models: the variants of a bundle, timed interleaved at the share of this process."""

import contextlib
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fractune_core.analysis.at_load import AtLoad, are_decided
from fractune_core.cpu_limits import LimitSize
from fractune_core.files.bundles import Bundle
from fractune_core.files.manifests import checked_of
from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT, WITH_GRAPHS
from fractune_core.served import LOAD, latencies, poisson
from fractune_core.shares import Share
from fractune_runtime.cpu import OnCpu, ShareHere
from fractune_runtime.gpu import OnGpu
from fractune_runtime.model import Backend
from fractune_runtime.runner import MIN_REPEAT_S, CallersThread, Runner, runner_for, secs_of_one
from fractune_runtime.tvm_runtime.drawing import drawn_inputs
from fractune_runtime.tvm_runtime.inside import time_inside
from fractune_runtime.tvm_runtime.tensors import input_specs
from fractune_workers.children.tvm_api.arrays import difference
from fractune_workers.children.tvm_api.processor import Processor

Call = Callable[[], Any]
"""One inference, waited for"""


def backend_on(processor: Processor, bundle: Bundle) -> Backend:
    """What runs the bundle for `fractune.load`. On a GPU it runs on the processor's stream, and in this thread alone.

    Raises BadBundle if the processor cannot run its code.
    """
    return OnGpu(bundle, None, stream=processor.stream) if processor.is_gpu else OnCpu(bundle, None)


@contextlib.contextmanager
def serving(threads: int, cpus: Collection[int]) -> Iterator[Runner | CallersThread]:
    """The runner that `fractune.load` gives a model with `threads` threads on `cpus`."""
    runner = runner_for(ShareHere(len(cpus), tuple(cpus), "the measured share"), threads)
    try:
        yield runner
    finally:
        runner.stop()


# Whole models at 30 % load: the fastest variants of a bundle, with one thread too, answer requests at random moments.
#
# They run as a service runs them. With several threads, each request is handed over to the first thread of a pool.
# With one thread, the caller runs the model itself.

_FINALISTS = 3
_CLOSE = 1.5
"""times in a loop of the fastest variant: a variant that takes longer is not timed at load"""
ROUNDS, _FEWEST_ROUNDS = 11, 6
"""an interval needs six"""
_REQUESTS, _P99_REQUESTS = 10, 100
"""of a round at most, and in all for a p99"""
_MOST_REQUESTS_S = 3.0
"""of the requests to all finalists together"""
_REST_S = 0.005
"""in which the threads of another pool fall asleep"""


@dataclass
class Finalist:
    """A variant with a number of threads, and its times so far."""

    variant: str
    threads: int
    call: Call
    rest_s: float = _REST_S
    """pause before it is timed"""
    first_s: float = math.inf
    """of one inference in a loop, before the rounds; infinite = not known"""
    loop_secs: list[float] = field(default_factory=list)
    latency_secs: list[float] = field(default_factory=list)

    @property
    def found(self) -> AtLoad:
        return AtLoad(self.variant, self.threads, tuple(self.loop_secs), tuple(self.latency_secs))

    def time_loop(self, at_least_s: float = MIN_REPEAT_S) -> float:
        self._rest()
        return secs_of_one(self.call, at_least_s)

    def answer(self, arrivals_s: Sequence[float]) -> None:
        self._rest()
        self.latency_secs += latencies(self.call, arrivals_s)

    def take_round(self, arrivals_s: Sequence[float]) -> None:
        """A loop, then the requests."""
        self.loop_secs.append(self.time_loop())
        self.latency_secs += latencies(self.call, arrivals_s)

    def _rest(self) -> None:
        time.sleep(self.rest_s)
        self.call()


def time_at_load(
    calls: Mapping[str, Call], loop_s: Mapping[str, float], own: str, cpus: Collection[int]
) -> list[AtLoad]:
    """The fastest of the variants `calls`, which take `loop_s` seconds in a loop. The variant `own` of the share comes
    first. All answer requests with the same arrivals, at 30 % of the rate of the fastest in a loop. Empty for a model
    that is too slow for six requests in the time.

    In a round each runs in a loop, then answers some requests. With too few requests for a p99, the rounds end as soon
    as no further one can change a choice.

    `cpus` are those of the share, empty for a GPU: there all run on this thread, which launches on the share's stream.
    """
    with ExitStack() as threads:
        finalists = _finalists(calls, loop_s, own, cpus, threads)
        rate_per_s = LOAD / min(each.first_s for each in finalists)
        requests = int(rate_per_s * _MOST_REQUESTS_S / len(finalists))
        rounds = min(ROUNDS, requests)
        if rounds < _FEWEST_ROUNDS:
            return []
        draws = random.Random(0)
        arrivals_s = [poisson(rate_per_s, min(_REQUESTS, requests // rounds), draws) for _ in range(rounds)]
        has_p99 = sum(map(len, arrivals_s)) >= _P99_REQUESTS
        for number in range(rounds):
            for each in in_turn(finalists, number):
                each.take_round(arrivals_s[number])
            found = [each.found for each in finalists]
            if number + 1 >= _FEWEST_ROUNDS and not has_p99 and are_decided(found, rounds):
                break
    return found


def _finalists(
    calls: Mapping[str, Call], loop_s: Mapping[str, float], own: str, cpus: Collection[int], threads: ExitStack
) -> list[Finalist]:
    fastest = _fastest(loop_s, own)
    if not cpus:
        return [Finalist(name, 1, calls[name], first_s=loop_s[name]) for name in fastest]
    count = len(cpus)
    pool = threads.enter_context(serving(count, cpus))
    finalists = [Finalist(name, count, partial(pool.call, calls[name]), first_s=loop_s[name]) for name in fastest]
    if count == 1:
        return finalists
    one = threads.enter_context(serving(1, cpus))
    with_one = [Finalist(name, 1, partial(one.call, call)) for name, call in calls.items() if name != UNTUNED_VARIANT]
    for each in with_one:
        each.first_s = each.time_loop()
    best = min(with_one, key=lambda each: each.first_s, default=None)
    if best is None or best.first_s > _CLOSE * min(loop_s.values()):
        return finalists
    return [*finalists[: _FINALISTS - 1], best]


def _fastest(loop_s: Mapping[str, float], own: str) -> list[str]:
    most_s = _CLOSE * min(loop_s.values())
    close = sorted((name for name in loop_s if loop_s[name] <= most_s), key=lambda name: (name != own, loop_s[name]))
    return close[:_FINALISTS]


def interleaved(finalists: Sequence[Finalist], rounds: int) -> Iterator[tuple[Finalist, int]]:
    for number in range(rounds):
        for each in in_turn(finalists, number):
            yield each, number


def in_turn(finalists: Sequence[Finalist], number: int) -> Sequence[Finalist]:
    """In the order of the round with this number: the last one of a round begins the next."""
    return finalists[:: -1 if number % 2 else 1]


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


def time_under_limit(
    calls: Mapping[str, Call], threads: Mapping[str, int], cpus: Collection[int], period_s: float
) -> list[AtLoad]:
    """The variants `threads`, with their numbers of threads on `cpus`, interleaved: in a loop, then at 30 % of the rate
    of the fastest. All answer requests with the same arrivals. A slow model has fewer requests.
    """
    with ExitStack() as held:
        runners = {name: held.enter_context(serving(count, cpus)) for name, count in threads.items()}
        finalists = [
            # The next one begins with the whole limit.
            Finalist(name, threads[name], partial(runner.call, calls[name]), rest_s=period_s)
            for name, runner in runners.items()
        ]
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
_VERY_SLOW_S, _FAR_BEHIND = 1.0, 10.0
"""A variant that takes longer is timed once, in the run that gives its outputs. So is a slow one that takes that many
times as long as the fastest. It is the untuned one: no number of timings would make it a choice. If its operators'
times show that it is both, it does not run at all. Then the others' outputs were compared with another runtime's."""


def time_variants(path: Path, repeats: int, own: str, processor: Processor) -> dict[str, Any]:
    """Time every variant of a bundle on the same random inputs, one repeat each a round. Then time the fastest and the
    variant `own` at 30 % load.

    Variants with CUDA graphs are left out under a green context.

    Returns `run_secs` (seconds of one inference, `repeats` of them, of a slow variant fewer) and `max_error` (largest
    difference to the untuned output, over that output's largest value) by variant. If the untuned one is too slow to
    run, both are without it, and `untuned_sum_s` are the seconds of its operators. `at_load` is from `time_at_load`.
    `inside` is an Inside of the variant `own` as JSON; None on a GPU, and for a model that is very slow.
    """
    cpus = () if processor.is_gpu else sorted(os.sched_getaffinity(0))
    with ExitStack() as threads:
        run = threads.enter_context(serving(len(cpus), cpus)).call if cpus else _here
        model = _loaded(path, processor, Share.parse(own), run)
        counts = _repeats(model.first_s, repeats)
        run_secs = {name: [secs] if counts[name] == 1 else [] for name, secs in model.first_s.items()}
        for _ in range(repeats):
            for name, call in model.calls.items():
                if len(run_secs[name]) < counts[name]:
                    run_secs[name].append(run(secs_of_one, call))
        loop_s = {name: statistics.median(secs) for name, secs in run_secs.items()}
        inside = None
        if cpus and own in loop_s and loop_s[own] < _VERY_SLOW_S:
            call = model.calls[own]
            with closing(Bundle(path)) as bundle:
                names = bundle.kernels(own), bundle.candidates(own)
            inside = run(time_inside, call.args[0], call).brief(*names).to_json()
    at_load = time_at_load(model.calls, loop_s, own, cpus)
    return {
        "run_secs": run_secs,
        "max_error": model.errors,
        "untuned_sum_s": model.untuned_sum_s,
        "at_load": [each.to_json() for each in at_load],
        "inside": inside,
    }


def time_variants_under(limit: Share, path: Path, processor: Processor) -> dict[str, Any]:
    """As `time_variants`, under the CPU limit of this process. Each variant for whole cores, or without them the robust
    one, has a thread for each of its cores; the untuned one has a thread for each CPU.
    """
    cpus, period_s = sorted(os.sched_getaffinity(0)), LimitSize.parse(limit.size).period_ms * 1e-3
    with serving(len(cpus), cpus) as all_cpus:
        model = _loaded(path, processor, limit, all_cpus.call)
        untuned_secs = {
            name: [secs]
            if secs > _VERY_SLOW_S
            else [all_cpus.call(secs_of_one, model.calls[name], period_s) for _ in range(_FEW_REPEATS)]
            for name, secs in model.first_s.items()
            if name == UNTUNED_VARIANT
        }
    threads = {str(share): share.cores for share in limit.kernel_shares if str(share) in model.calls}
    at_load = time_under_limit(model.calls, threads or {ROBUST_VARIANT: len(cpus)}, cpus, period_s)
    return {
        "run_secs": untuned_secs | {each.variant: each.loop_secs for each in at_load},
        "max_error": model.errors,
        "untuned_sum_s": model.untuned_sum_s,
        "at_load": [each.to_json() for each in at_load],
        "inside": None,
    }


@dataclass(frozen=True)
class _Loaded:
    """The variants of a bundle by name, after one inference of each on the same random inputs; without the untuned one
    if that is too slow.
    """

    calls: dict[str, partial[Any]]
    """the first argument of each is the variant"""
    first_s: dict[str, float]
    errors: dict[str, float]
    """largest difference to the untuned output, over that output's largest value; empty if that was too slow"""
    untuned_sum_s: float
    """of the untuned variant's operators, if it is too slow to run; 0 = it ran"""


def _loaded(path: Path, processor: Processor, share: Share, run: Callable[..., Any]) -> _Loaded:
    """`run`: the result of a function on the thread of the model."""
    bundle = Bundle(path)
    backend, specs = backend_on(processor, bundle), input_specs(bundle.manifest)
    arguments = backend.placed(backend.arguments(specs, drawn_inputs(specs)))
    runs_graphs = share.kind.serves  # a graph is captured on a stream of its own, outside of a green context
    names = [each["name"] for each in bundle.variants if runs_graphs or not each["name"].endswith(WITH_GRAPHS)]
    calls, outputs, first_s = dict[str, Any](), dict[str, Any](), dict[str, float]()
    checked = checked_of(bundle.manifest)
    # Without another runtime's outputs, the untuned variant's are all that the others are compared with.
    sum_s = bundle.untuned_sum_s(str(share)) if checked is not None and checked.is_equal else 0.0
    for name in sorted(names, key=lambda name: name == UNTUNED_VARIANT):
        if name == UNTUNED_VARIANT and is_too_slow(sum_s, first_s):
            return _Loaded(calls, first_s, {}, sum_s)
        calls[name] = partial(backend.held, backend.load_variant(name), arguments)
        start = time.perf_counter()
        outputs[name] = list(map(backend.array, run(calls[name])))
        first_s[name] = time.perf_counter() - start
    return _Loaded(calls, first_s, errors_of(outputs), 0.0)


def is_too_slow(untuned_sum_s: float, first_s: Mapping[str, float]) -> bool:
    """Whether the untuned variant need not run, by the seconds of its operators and of the others' first runs."""
    return bool(first_s) and untuned_sum_s > max(_VERY_SLOW_S, _FAR_BEHIND * min(first_s.values()))


def errors_of(outputs: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """The largest difference of each variant's outputs to the untuned variant's (`difference`). One that is infinite,
    as between shapes that depend on the data, is the largest number: JSON in a database holds no infinity.
    """
    reference = outputs[UNTUNED_VARIANT]
    return {name: min(max(map(difference, out, reference)), sys.float_info.max) for name, out in outputs.items()}


def _here(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _repeats(first_s: Mapping[str, float], most: int) -> dict[str, int]:
    """By variant, from the seconds of their first runs."""
    behind_s = min(_VERY_SLOW_S, max(_SLOW_S, _FAR_BEHIND * min(first_s.values())))
    return {
        name: 1 if secs > behind_s else min(most, _FEW_REPEATS) if secs > _SLOW_S else most
        for name, secs in first_s.items()
    }
