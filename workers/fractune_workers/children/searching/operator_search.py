"""The search for one implementation of an operator: sampling, then MetaSchedule's evolution, guided by a surrogate.

The parts are MetaSchedule's; how a round is put together from them is ours, since its own rounds are all of one size
and forget what they generated beyond it. A first small round can then be drawn at random, and each later one learns
from those before it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch

from fractune_core.analysis.joint_time import joint_time_s
from fractune_workers.children.searching.decisions import SurrogateModel, features_of
from fractune_workers.children.searching.first_candidates import first_candidates
from fractune_workers.children.searching.space import space_for
from fractune_workers.children.searching.surrogate import Surrogate
from fractune_workers.children.searching.transfer import seeds
from fractune_workers.children.tvm_api.intrinsics import load_intrinsics
from fractune_workers.children.tvm_api.traces import read_trace, write_trace
from fractune_workers.children.tvm_api.vector_unit import vector_unit

_POPULATION, _GENERATIONS = 64, 2
"""of one round: an eighth of MetaSchedule's population for half its generations (docs/decisions/0009-surrogate.md)"""
_FEWEST_MEASURED = 8
"""with fewer measured candidates the surrogate knows too little to guide: sample instead"""
_PRESSURE = 4.0
"""Parents are drawn in proportion to their predicted speed to this power: above 1, fast ones have more offspring"""
_BARREN_DRAWS = 4
"""draws in a row without anything new, after which a space counts as exhausted"""
_MEASURED_PART = 0.2
"""of the population: the fastest schedules so far, as in MetaSchedule"""
_RANDOM_PART = 1 / 16
"""of a round: drawn without asking the surrogate, about as many as in MetaSchedule"""

_PREFIX = "s_tir.meta_schedule.SearchStrategyEvolutionarySearch"
_sample = tvm_ffi.get_global_func(f"{_PREFIX}SampleInitPopulation")
_evolve = tvm_ffi.get_global_func(f"{_PREFIX}EvolveWithCostModel")


@dataclass
class _Pending:
    sch: Any
    secs: dict[str, float] = field(default_factory=dict)
    """by share; 0 for a failure"""


class OperatorSearch:
    """Candidates out, run times in."""

    def __init__(self, workload: Any, target: Any, seed: int, threads: int) -> None:
        load_intrinsics(target)
        self._workload = workload
        self._surrogate = Surrogate()
        self._strategy = EvolutionarySearch(
            population_size=_POPULATION, genetic_num_iters=_GENERATIONS, init_min_unmeasured=1
        )
        self._context = ms.TuneContext(
            mod=workload.mod,
            target=target,
            space_generator=space_for(workload, target),
            search_strategy=self._strategy,
            rand_state=seed % (2**31 - 2) + 1,
            num_threads=threads,
        )
        self.spaces = self._context.generate_design_space()
        # The strategy needs numbers of trials and a database, but only its own rounds read them.
        self._context.pre_tuning(
            1, 1, self.spaces, ms.database.MemoryDatabase(), SurrogateModel(self._surrogate, _PRESSURE)
        )
        self._seen: set[int] = set()
        self._returned: set[int] = set()
        """what the evolution has returned: it does so only once"""
        self._pending: dict[str, _Pending] = {}
        self._again: list[Any] = []
        """schedules that were proposed, and are to be once more"""
        self._fastest = _Fastest(int(_POPULATION * _MEASURED_PART))
        self._transferred: Iterator[Any] = iter(())
        self._computed: Iterator[Any] = iter(())
        if target.kind.name == "llvm":
            self._computed = first_candidates(workload, self.spaces, self.postprocs, vector_unit(target))
        self._first = self._beginnings()

    @property
    def measured(self) -> int:
        """Candidates whose times are known, failures too."""
        return len(self._surrogate)

    @property
    def best_s(self) -> float:
        """Seconds of the fastest; infinite as long as there is none."""
        return self._fastest.best_s

    @property
    def postprocs(self) -> Any:
        """The rules that make a sampled schedule fit the target."""
        return self._context.space_generator.postprocs

    def propose(self, count: int, name: Callable[[str], str]) -> list[dict[str, str]]:
        """Up to `count` candidates never proposed before, after those that are to be proposed again: `candidate` (named
        by `name` from the trace) and `trace`.
        """
        fresh, self._again = self._again[:count], self._again[count:]
        fresh += self._unseen(self._first, count - len(fresh))
        if len(fresh) < count and len(self._surrogate) >= _FEWEST_MEASURED:
            fresh += self._evolved(count - len(fresh))
        fresh += self._drawn(count - len(fresh))
        return [self._hand_out(sch, name) for sch in fresh]

    def offer_again(self, lost: Iterable[str]) -> None:
        """Have the next proposals begin with candidates that were proposed and never measured; unknown ones are passed
        over.
        """
        self._again += [self._pending.pop(name).sch for name in lost if name in self._pending]

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
                finished.append((pending.sch, joint_time_s(pending.secs.values())))
        self._take_in(finished)

    def warm(self, history: Iterable[tuple[str, float]]) -> None:
        """Take in earlier trials of this operator: (trace, seconds or 0)."""
        trials = [(read_trace(trace, self._workload), secs) for trace, secs in history]
        self._seen.update(_digest(sch) for sch, _ in trials)
        self._take_in(trials)

    def transfer(self, traces: Iterable[str]) -> None:
        """Try the schedules of other operators first, adapted to this one."""
        self._transferred = iter(seeds(traces, self._workload.mod, self.spaces, self.postprocs))

    def _beginnings(self) -> Iterator[Any]:
        """What is tried before anything is known: computed candidates and transferred ones, in turn."""
        while True:
            computed = next(self._computed, None)
            transferred = next(self._transferred, None)
            if computed is None and transferred is None:
                return
            yield from (sch for sch in (computed, transferred) if sch is not None)

    def _drawn(self, count: int) -> list[Any]:
        """Up to `count` random ones; fewer when the space holds no more."""
        fresh: list[Any] = []
        size, barren = count, 0
        while len(fresh) < count and barren < _BARREN_DRAWS:
            found = self._unseen(_sample(self._strategy, size), count - len(fresh))
            fresh += found
            barren = 0 if found else barren + 1
            # For a GPU the postprocs refuse most samples, nine of ten and more: few of a small draw would be left.
            size = max(size, min(2 * size, _POPULATION))
        return fresh

    def _evolved(self, count: int) -> list[Any]:
        """The best of an evolution by the surrogate, and a few of its random beginnings."""
        known = self._fastest.schedules()
        drawn = list(_sample(self._strategy, _POPULATION - len(known)))
        if not known and not drawn:
            return []
        random = int(count * _RANDOM_PART)
        # What is known comes back among the best, if it never did: ask for as many more.
        again = sum(digest not in self._returned for digest in map(_digest, known))
        found = list(_evolve(self._strategy, known + drawn, count - random + again))
        self._returned.update(map(_digest, found))
        return self._unseen(found, count - random) + self._unseen(drawn, random)

    def _take_in(self, trials: list[tuple[Any, float]]) -> None:
        self._surrogate.add([features_of(sch.trace) for sch, _ in trials], [secs for _, secs in trials])
        for sch, secs in trials:
            if secs > 0:
                self._fastest.add(sch, secs)

    def _unseen(self, schedules: Iterable[Any], count: int) -> list[Any]:
        """The first `count` of them that are new; what comes after stays where it is."""
        fresh: list[Any] = []
        schedules = iter(schedules)
        while len(fresh) < count and (sch := next(schedules, None)) is not None:
            digest = _digest(sch)
            if digest not in self._seen:
                self._seen.add(digest)
                fresh.append(sch)
        return fresh

    def _hand_out(self, sch: Any, name: Callable[[str], str]) -> dict[str, str]:
        trace = write_trace(sch.trace)
        self._pending[name(trace)] = _Pending(sch)
        return {"candidate": name(trace), "trace": trace}


class _Fastest:
    """The `size` fastest schedules."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._added = 0
        self._heap: list[tuple[float, int, Any]] = []

    def add(self, sch: Any, secs: float) -> None:
        self._added += 1  # no two entries are equal, so that schedules are never compared
        heapq.heappush(self._heap, (-secs, -self._added, sch))
        if len(self._heap) > self._size:
            heapq.heappop(self._heap)

    @property
    def best_s(self) -> float:
        return min((-secs for secs, _, _ in self._heap), default=math.inf)

    def schedules(self) -> list[Any]:
        """The fastest first."""
        return [sch for _, _, sch in sorted(self._heap, reverse=True)]


def _digest(sch: Any) -> int:
    return int(tvm_ffi.structural_hash(sch.mod))
