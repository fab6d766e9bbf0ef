"""The tuner instance's child: MetaSchedule's search for the operators it holds.

Search state lives here and nowhere else. An operator that is new to the process is warmed from the trials that the
log already holds; one that was not needed for long is forgotten.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch, MeasureCandidate, ReplayTrace

from tuner_core.records import candidate_id
from workers.children.artifacts import read_trace, read_workload, write_trace
from workers.children.intrinsics import load_cpu_intrinsics
from workers.children.transfer import seeds

_TREES_WITHOUT_GAIN = 10
"""The cost model stops growing after this many trees that did not help (50 in MetaSchedule)"""
_WARM_SAMPLES = 32
"""The cost model guesses at random until it has seen this many"""
_SAMPLING_TRIES = 4
_LENT = 3
"""schedules that each lender gives"""
_OPERATORS_KEPT = 256
_UNBOUNDED_TRIALS = 1 << 30


@dataclass(frozen=True)
class Evolution:
    """How hard one round searches; `benchmarks.evolution` compares sizes."""

    population: int = 64
    generations: int = 2
    """an eighth of MetaSchedule's population for half its generations: a twelfth of the CPU time of a round"""
    sampled: int = 8
    """Below this many measured candidates the cost model knows too little of an operator to guide: sample instead"""


@dataclass
class _Pending:
    candidate: Any
    secs: dict[str, float] = field(default_factory=dict)


class OperatorSearch:
    """The search for one operator: candidates out, run times in."""

    def __init__(
        self,
        workload: Any,
        target: Any,
        cost_model: Any,
        seed: int,
        threads: int,
        evolution: Evolution = Evolution(),
    ) -> None:
        self._evolution = evolution
        self._target = target
        self._cost_model = cost_model
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(workload.mod)
        self._args_info = ArgInfo.from_entry_func(workload.mod, remove_preproc=True)
        self._seen: set[int] = set()
        self._pending: dict[str, _Pending] = {}
        self._measured = 0
        self._sampler = self._context(ReplayTrace(), seed, threads)
        strategy = EvolutionarySearch(population_size=evolution.population, genetic_num_iters=evolution.generations)
        self._evolver = self._context(strategy, seed + 1, threads)
        self._spaces = self._sampler.generate_design_space()
        self._borrowed: list[Any] = []
        self._round_size = 0

    def propose(self, count: int, round_size: int, name: Callable[[str], str]) -> list[dict[str, str]]:
        """Up to `count` candidates never proposed before: `candidate` (named by `name` from the trace) and `trace`."""
        self._start_rounds(round_size)
        fresh = self._unseen(self._borrowed, count)
        self._borrowed = []
        if len(fresh) < count and self._measured >= self._evolution.sampled:
            fresh += self._unseen(self._evolver.generate_measure_candidates(), count - len(fresh))
        for _ in range(_SAMPLING_TRIES):
            if len(fresh) >= count:
                break
            fresh += self._unseen(self._sampler.generate_measure_candidates(), count - len(fresh))
        return [self._hand_out(candidate, name) for candidate in fresh]

    def learn(self, results: Iterable[tuple[str, str, float]], shares: int) -> None:
        """Take in (candidate, share, seconds or 0 for a failure); a candidate counts once all `shares` are in.

        The search is guided by the geometric mean over the shares: no share's unit of time outweighs another's.
        """
        finished: list[tuple[Any, float]] = []
        for name, share, secs in results:
            pending = self._pending.get(name)
            if pending is None:
                continue
            pending.secs[share] = secs
            if len(pending.secs) == shares:
                del self._pending[name]
                finished.append((pending.candidate, geometric_mean(pending.secs.values())))
        self._take_in(finished)

    def warm(self, history: Iterable[tuple[str, float]]) -> None:
        """Take in earlier trials of this operator: (trace, seconds or 0)."""
        trials = []
        for trace, secs in history:
            candidate = MeasureCandidate(read_trace(trace, self._workload), self._args_info)
            self._seen.add(_module_hash(candidate))
            trials.append((candidate, secs))
        self._take_in(trials)

    def borrow(self, traces: Iterable[str]) -> None:
        """Try the schedules of other operators first, adapted to this one."""
        rules = self._sampler.space_generator.postprocs
        adapted = seeds(traces, self._workload.mod, self._spaces, rules)
        self._borrowed = [MeasureCandidate(sch, self._args_info) for sch in adapted]

    def _take_in(self, trials: list[tuple[Any, float]]) -> None:
        if not trials:
            return
        for candidate, secs in trials:
            if secs > 0:
                self._measured += 1
                self._database.commit_tuning_record(
                    ms.database.TuningRecord(candidate.sch.trace, self._workload, [secs], self._target, self._args_info)
                )
        results = [RunnerResult([s], None) if s > 0 else RunnerResult(None, "failed") for _, s in trials]
        self._cost_model.update(self._evolver, [candidate for candidate, _ in trials], results)

    def _context(self, strategy: Any, seed: int, threads: int) -> Any:
        return ms.TuneContext(
            mod=self._workload.mod,
            target=self._target,
            space_generator="post-order-apply",
            search_strategy=strategy,
            rand_state=seed % (2**31 - 2) + 1,
            num_threads=threads,
        )

    def _start_rounds(self, round_size: int) -> None:
        if round_size == self._round_size:
            return
        for context in (self._sampler, self._evolver):
            if self._round_size:
                context.post_tuning()
            context.pre_tuning(_UNBOUNDED_TRIALS, round_size, self._spaces, self._database, self._cost_model)
        self._round_size = round_size

    def _unseen(self, candidates: Any, count: int) -> list[Any]:
        fresh: list[Any] = []
        for candidate in candidates or ():
            digest = _module_hash(candidate)
            if len(fresh) < count and digest not in self._seen:
                self._seen.add(digest)
                fresh.append(candidate)
        return fresh

    def _hand_out(self, candidate: Any, name: Callable[[str], str]) -> dict[str, str]:
        trace = write_trace(candidate.sch.trace)
        self._pending[name(trace)] = _Pending(candidate)
        return {"candidate": name(trace), "trace": trace}


class SearcherChild:
    """All operators of one tuner instance, with one cost model for each target."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._operators: OrderedDict[tuple[str, str], OperatorSearch] = OrderedDict()
        self._cost_models: dict[str, Any] = {}
        self._lenders: set[tuple[str, str]] = set()

    def knows(self, workload_hash: str, target_key: str) -> bool:
        return (workload_hash, target_key) in self._operators

    def open(
        self,
        workload_hash: str,
        workload: str,
        target: str,
        target_key: str,
        seed: int,
        history: list[dict[str, Any]],
        lenders: list[dict[str, Any]],
    ) -> None:
        """Take on an operator: MetaSchedule's workload as JSON text, its earlier trials (`trace` and `secs`), and
        those of its lenders (`workload_hash`, `workload`, `trials`, the fastest first).
        """
        if target_key not in self._cost_models:
            self._cost_models[target_key] = new_cost_model(seed, self._threads)
        # Operators of one job must not all draw the same random numbers.
        search = self._search(workload, target, target_key, seed + int(workload_hash[:8], 16))
        search.warm((trial["trace"], trial["secs"]) for trial in history)
        for lender in lenders:
            self._learn_from(lender, target, target_key)
        search.borrow(trial["trace"] for lender in lenders for trial in lender["trials"][:_LENT])
        self._operators[workload_hash, target_key] = search
        while len(self._operators) > _OPERATORS_KEPT:
            self._operators.popitem(last=False)

    def _search(self, workload: str, target: str, target_key: str, seed: int) -> OperatorSearch:
        parsed = tvm.target.Target(json.loads(target))
        return OperatorSearch(read_workload(workload), parsed, self._cost_models[target_key], seed, self._threads)

    def _learn_from(self, lender: dict[str, Any], target: str, target_key: str) -> None:
        """Teach the cost model a lender's trials, unless it has seen them here."""
        key = (lender["workload_hash"], target_key)
        if key not in self._operators and key not in self._lenders:
            self._lenders.add(key)
            search = self._search(lender["workload"], target, target_key, seed=0)
            search.warm((trial["trace"], trial["secs"]) for trial in lender["trials"])

    def learn(self, workload_hash: str, target_key: str, results: list[tuple[str, str, float]], shares: int) -> None:
        """Results of an operator: (candidate, share, seconds or 0 for a failure); unknown ones are passed over."""
        search = self._operators.get((workload_hash, target_key))
        if search is not None:
            search.learn(results, shares)

    def propose(self, workload_hash: str, target_key: str, count: int, round_size: int) -> list[dict[str, str]]:
        """Up to `count` new candidates of an open operator; fewer when its space holds no more."""
        self._operators.move_to_end((workload_hash, target_key))
        return self._operators[workload_hash, target_key].propose(
            count, round_size, lambda trace: candidate_id(workload_hash, target_key, trace)
        )


def new_cost_model(seed: int, threads: int) -> Any:
    """MetaSchedule's gradient-boosted trees, which learn from all operators of a target."""
    np.random.seed(seed % 2**32)  # noqa: NPY002  it draws from it until it has learned
    return ms.cost_model.XGBModel(
        num_warmup_samples=_WARM_SAMPLES, early_stopping_rounds=_TREES_WITHOUT_GAIN, num_tuning_cores=threads
    )


def geometric_mean(secs: Iterable[float]) -> float:
    """Geometric mean of times in seconds; 0 (a failure) when one of them is 0."""
    values = list(secs)
    if min(values) <= 0:
        return 0.0
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _module_hash(candidate: Any) -> int:
    return int(tvm_ffi.structural_hash(candidate.sch.mod))


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The methods; the one argument is the number of threads to search with."""
    load_cpu_intrinsics()
    child = SearcherChild(int(args[0]))
    return {"knows": child.knows, "open": child.open, "learn": child.learn, "propose": child.propose}
