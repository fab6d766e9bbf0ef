"""The search for one implementation of an operator: sampling, then MetaSchedule's evolution, guided by a surrogate.

The parts are MetaSchedule's, and this module combines them into rounds. MetaSchedule's own rounds are all of one size,
and forget the candidates beyond it. Here a first small round can be drawn at random, and each later round learns from
the earlier ones.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch

from fractune_core.analysis.joint_time import joint_time_s
from fractune_workers.children.searching.async_copies import with_async_copies
from fractune_workers.children.searching.decisions import SurrogateModel, features_of
from fractune_workers.children.searching.first_candidates import first_candidates
from fractune_workers.children.searching.space import space_for
from fractune_workers.children.searching.surrogate import Surrogate
from fractune_workers.children.searching.transfer import seeds
from fractune_workers.children.tvm_api.intrinsics import load_intrinsics
from fractune_workers.children.tvm_api.target import vector_unit
from fractune_workers.children.tvm_api.traces import read_trace, write_trace

_POPULATION, _GENERATIONS = 64, 2
"""of one round: an eighth of MetaSchedule's population for half its generations (docs/decisions/0009-surrogate.md)"""
_FEWEST_MEASURED = 8
"""with fewer measured candidates the surrogate knows too little to guide: sample instead"""
_PRESSURE = 4.0
"""Parents are drawn in proportion to their predicted speed to this power: above 1, fast ones have more offspring."""
_BARREN_DRAWS = 4
"""draws in a row without anything new, after which a space counts as exhausted"""
_MEASURED_PART = 0.2
"""of the population: the fastest schedules so far, as in MetaSchedule"""
_RANDOM_PART = 1 / 16
"""of a round: drawn without the surrogate, about the same part as in MetaSchedule"""

_PREFIX = "s_tir.meta_schedule.SearchStrategyEvolutionarySearch"
_sample = tvm_ffi.get_global_func(f"{_PREFIX}SampleInitPopulation")
_evolve = tvm_ffi.get_global_func(f"{_PREFIX}EvolveWithCostModel")


@dataclass
class _Trial:
    """A candidate that was measured somewhere."""

    features: Mapping[str, float]
    sch: Any | None
    """None once it is not needed any more: the trial counts, and is not among the fastest"""
    secs: dict[str, float] = field(default_factory=dict)
    """by share; 0 for a failure"""
    counts: bool = False
    """True when the search has learned from it, at the shares that it is for"""

    def joint_s(self, shares: Collection[str]) -> float | None:
        """Geometric mean over the shares, 0 for a failure; None when it was not measured at all of them."""
        if not all(share in self.secs for share in shares):
            return None
        return joint_time_s(self.secs[share] for share in shares)


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
        self.spaces = with_async_copies(self._context.generate_design_space(), target)
        model = SurrogateModel(self._surrogate, _PRESSURE)
        # The strategy needs numbers of trials and a database, but only its own rounds read them.
        self._context.pre_tuning(1, 1, self.spaces, ms.database.MemoryDatabase(), model)
        self._seen: set[int] = set()
        self._returned: set[int] = set()
        """schedules that the evolution has returned: it returns each only once"""
        self._pending: dict[str, Any] = {}
        """schedules that were proposed, and not measured anywhere yet"""
        self._trials: dict[str, _Trial] = {}
        self._shares: frozenset[str] = frozenset()
        """that it is searched for"""
        self._known: frozenset[str] = frozenset()
        """candidates that must not be proposed"""
        self._name: Callable[[str], str] = str
        self._again: list[Any] = []
        """schedules to propose once more"""
        self._fastest = _Fastest(int(_POPULATION * _MEASURED_PART))
        self._transferred: Iterator[Any] = iter(())
        self._computed: Iterator[Any] = iter(())
        if target.kind.name == "llvm":
            self._computed = first_candidates(workload, self.spaces, self.postprocs, vector_unit(target))
        self._first = self._beginnings()

    @property
    def measured(self) -> int:
        """The number of candidates with known times, failures too."""
        return len(self._surrogate)

    @property
    def best_s(self) -> float:
        """Seconds of the fastest candidate; infinite without one."""
        return self._fastest.best_s

    @property
    def postprocs(self) -> Any:
        """The rules that make a sampled schedule fit the target."""
        return self._context.space_generator.postprocs

    def propose(self, count: int, name: Callable[[str], str]) -> list[dict[str, str]]:
        """Up to `count` candidates, those to propose again first, then new ones: `candidate` (named by `name` from the
        trace) and `trace`.
        """
        self._name = name
        fresh, self._again = self._again[:count], self._again[count:]
        fresh += self._unseen(self._first, count - len(fresh))
        if len(fresh) < count and len(self._surrogate) >= _FEWEST_MEASURED:
            fresh += self._evolved(count - len(fresh))
        fresh += self._drawn(count - len(fresh))
        return [self._hand_out(sch) for sch in fresh]

    def offer_again(self, lost: Iterable[str]) -> None:
        """Begin the next proposals with these candidates, which were proposed and never measured; unknown ones are
        ignored.
        """
        self._again += [self._pending.pop(name) for name in lost if name in self._pending]

    def leave_out(self, known: Iterable[str]) -> None:
        """Never propose these candidates."""
        self._known |= frozenset(known)

    def learn(self, results: Iterable[tuple[str, str, float]], shares: Collection[str]) -> None:
        """Take in (candidate, share, seconds or 0 for a failure); a candidate counts once all `shares` are in.

        The geometric mean over the shares guides the search: the unit of time of one share does not outweigh another's.
        The shares may change, as jobs come and go. Then the results at the new shares count.
        """
        changed: dict[str, _Trial] = {}
        for name, share, secs in results:
            trial = self._trials.get(name)
            if trial is None and name in self._pending:
                sch = self._pending.pop(name)
                trial = self._trials[name] = _Trial(features_of(sch.trace), sch)
            if trial is not None:
                trial.secs[share] = secs
                changed[name] = trial
        if self._shares == frozenset(shares):
            self._take_in(changed.values())
        else:
            self._shares = frozenset(shares)
            self._surrogate.clear()
            self._fastest.clear()
            for trial in self._trials.values():
                trial.counts = False
            self._take_in(self._trials.values())

    def warm(self, history: Iterable[tuple[str, str, Mapping[str, float]]]) -> None:
        """Take in earlier trials of this operator: (candidate, trace, seconds or 0 by share)."""
        for name, trace, secs in history:
            sch = read_trace(trace, self._workload)
            self._seen.add(_digest(sch))
            self._trials[name] = _Trial(features_of(sch.trace), sch, dict(secs))

    def transfer(self, traces: Iterable[str]) -> None:
        """Try the schedules of other operators first, adapted to this one."""
        self._transferred = iter(seeds(traces, self._workload.mod, self.spaces, self.postprocs))

    def _beginnings(self) -> Iterator[Any]:
        """The first schedules to try: computed candidates and transferred ones, alternately."""
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
            # For a GPU the postprocs refuse at least nine of ten samples: few of a small draw would be left.
            size = max(size, min(2 * size, _POPULATION))
        return fresh

    def _evolved(self, count: int) -> list[Any]:
        """The best of an evolution by the surrogate, and a few of its random beginnings."""
        known = self._fastest.schedules()
        drawn = list(_sample(self._strategy, _POPULATION - len(known)))
        if not known and not drawn:
            return []
        random = int(count * _RANDOM_PART)
        # Known schedules that were never returned come back among the best: request this many more.
        again = sum(digest not in self._returned for digest in map(_digest, known))
        found = list(_evolve(self._strategy, known + drawn, count - random + again))
        self._returned.update(map(_digest, found))
        return self._unseen(found, count - random) + self._unseen(drawn, random)

    def _take_in(self, trials: Iterable[_Trial]) -> None:
        """Learn from those that are measured at all shares by now."""
        new = [trial for trial in trials if not trial.counts]
        joint = [(trial, secs) for trial in new if (secs := trial.joint_s(self._shares)) is not None]
        self._surrogate.add([trial.features for trial, _ in joint], [secs for _, secs in joint])
        for trial, secs in joint:
            trial.counts = True
            beaten = self._fastest.add(trial, secs) if secs > 0 and trial.sch is not None else trial
            if beaten is not None:
                beaten.sch = None

    def _unseen(self, schedules: Iterable[Any], count: int) -> list[Any]:
        """The first `count` new schedules; the rest stays in the iterator."""
        fresh: list[Any] = []
        schedules = iter(schedules)
        while len(fresh) < count and (sch := next(schedules, None)) is not None:
            digest = _digest(sch)
            if digest not in self._seen:
                self._seen.add(digest)
                if not self._known or self._name(write_trace(sch.trace)) not in self._known:
                    fresh.append(sch)
        return fresh

    def _hand_out(self, sch: Any) -> dict[str, str]:
        trace = write_trace(sch.trace)
        name = self._name(trace)
        self._pending[name] = sch
        return {"candidate": name, "trace": trace}


class _Fastest:
    """The `size` fastest trials."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._added = 0
        self._heap: list[tuple[float, int, _Trial]] = []

    def clear(self) -> None:
        self._heap = []

    def add(self, trial: _Trial, secs: float) -> _Trial | None:
        """Add a trial; return the one that is not among the fastest any more, if there is one."""
        self._added += 1  # no two entries are equal, so that trials are never compared
        heapq.heappush(self._heap, (-secs, -self._added, trial))
        return heapq.heappop(self._heap)[2] if len(self._heap) > self._size else None

    @property
    def best_s(self) -> float:
        return min((-secs for secs, _, _ in self._heap), default=math.inf)

    def schedules(self) -> list[Any]:
        """The fastest first."""
        return [trial.sch for _, _, trial in sorted(self._heap, reverse=True)]


def _digest(sch: Any) -> int:
    return int(tvm_ffi.structural_hash(sch.mod))
