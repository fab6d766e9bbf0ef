"""The search for one implementation of an operator: sampling, then MetaSchedule's evolution, guided by a surrogate.

The parts are MetaSchedule's, and this module combines them into rounds. MetaSchedule's own rounds are all of one size,
and forget the candidates beyond it. Here a first small round can be drawn at random, and each later round learns from
the earlier ones.

It begins with good schedules of other operators of the same kind. A design space is a few sketches: traces whose
sampling steps are open. A schedule of another operator fits a sketch that tiles the same loops in the same way. Three
differences are ignored: how the fused neighbours are inlined, the names of blocks, and the loops' extents. The tiles
are scaled to the extents.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch

from fractune_core.records import UNTUNED
from fractune_workers.children.searching.spaces import integers, rows, winograd
from fractune_workers.children.searching.spaces.first_candidates import first_candidates, unit_for
from fractune_workers.children.searching.spaces.sketches import (
    AT_ROOT,
    CATEGORICAL,
    TILE,
    FitsRegisters,
    FitsSharedMemory,
    Sketch,
    applied,
    sketches_of,
    with_async_copies,
)
from fractune_workers.children.searching.trials import SurrogateModel, Trials, features_of
from fractune_workers.children.tvm_api.intrinsics import load_intrinsics, prepare_tensor_cores
from fractune_workers.children.tvm_api.target import vector_unit
from fractune_workers.children.tvm_api.traces import read_trace, write_trace

_OF_NEIGHBOURS = frozenset({
    "GetSBlock", "GetLoops", "GetConsumers", "GetProducers", "GetChildBlocks",
    "ComputeInline", "ReverseComputeInline",
    "CacheWrite",  # replaces a missing consumer
})  # fmt: skip
"""Steps that depend on the operators fused with the main computation, and not on its tiles."""


def seeds(traces: Iterable[str], mod: Any, spaces: Iterable[Any], postprocs: Iterable[Any]) -> list[Any]:
    """Schedules of `mod` adapted from the traces, in their order; none twice."""
    sketches, rules = sketches_of(spaces), list(postprocs)
    found: dict[int, Any] = {}
    for trace in traces:
        sch = adapt(trace, mod, sketches, rules)
        if sch is not None:
            found.setdefault(int(tvm_ffi.structural_hash(sch.mod)), sch)
    return list(found.values())


def adapt(trace: str, mod: Any, sketches: Iterable[Sketch], postprocs: Iterable[Any]) -> Any | None:
    """A schedule of `mod`, after `postprocs`, that follows the trace of another operator; None when it does not fit.

    `sketches` are of the design space of `mod`, `postprocs` are of its space generator.
    """
    if trace == UNTUNED:
        return None
    source = _before_postproc(json.loads(trace))
    fitting = [sketch for sketch in sketches if _signature(sketch) == _signature(source)]
    if not fitting:
        return None
    nearest = min(fitting, key=lambda sketch: _distance(_steps(sketch), _steps(source)))
    return applied([nearest[0], _decide(nearest, source)], mod, postprocs)


def scale_tile(tile: list[int], extent: int, max_innermost: int) -> list[int]:
    """The tile for a loop of another extent. Each inner factor becomes the divisor of the remaining extent that is
    nearest in ratio, and the outermost factor takes the rest.
    """
    inner: list[int] = []
    for wanted in reversed(tile[1:]):
        limit = extent if inner else min(extent, max_innermost)
        divisors = [factor for factor in range(1, limit + 1) if extent % factor == 0]
        inner.insert(0, min(divisors, key=lambda divisor: max(divisor / wanted, wanted / divisor)))
        extent //= inner[0]
    return [extent, *inner]


def _before_postproc(trace: Sketch) -> Sketch:
    steps, decisions = trace
    end = next((at for at, step in enumerate(steps) if step[0] == "EnterPostproc"), len(steps))
    return [steps[:end], [[at, decision] for at, decision in decisions if at < end]]


def _signature(trace: Sketch) -> tuple[list[Any], list[Any]]:
    """The parts that must agree: the number of levels of each tiled loop, and the choices of each categorical step."""
    decided = [trace[0][at] for at, _ in trace[1]]
    return (
        [attrs[0] for kind, _, attrs, _ in decided if kind == TILE],
        [attrs[0] for kind, _, attrs, _ in decided if kind == CATEGORICAL],
    )


def _steps(trace: Sketch) -> Counter[str]:
    """The steps as text that does not depend on the numbering of variables: `ReverseComputeAt Split4.1`.

    Blocks are left out (neighbours have other names), and numbers (they follow from the device and the extents).
    """
    words: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    origin: dict[str, str] = {}
    for kind, inputs, attrs, outputs in trace[0]:
        origin.update({name: f"{kind}{numbers[kind]}.{at}" for at, name in enumerate(outputs)})
        numbers[kind] += 1
        if kind not in _OF_NEIGHBOURS:
            used = [origin.get(name, name) for name in inputs if isinstance(name, str) and name[0] != "b"]
            words[" ".join([kind, *used, *(text for text in attrs if isinstance(text, str))])] += 1
    return words


def _distance(one: Counter[str], other: Counter[str]) -> int:
    return ((one - other) + (other - one)).total()


def _decide(sketch: Sketch, source: Sketch) -> Sketch:
    """A decision for each sampling step of the sketch: the source's decision in its n-th step of that kind."""
    chosen: dict[str, list[Any]] = defaultdict(list)
    for at, decision in source[1]:
        chosen[source[0][at][0]].append(decision)
    decisions = []
    for at, own in sketch[1]:
        kind, _, attrs, _ = sketch[0][at]
        # Only a location may have no partner: by the signature, the other kinds have equal counts.
        theirs: Any = chosen[kind].pop(0) if chosen[kind] else AT_ROOT
        # The sketch's own tile is of no worth, but its product is the loop's extent.
        decisions.append([at, scale_tile(theirs, prod(own), attrs[1]) if kind == TILE else theirs])
    return decisions


_JOBS_A_CORE = 16
_UNROLL_STEPS = [0, 16, 64, 512]
"""MetaSchedule's own for CPUs"""


def space_for(workload: Any, target: tvm.target.Target) -> Any:
    """The space generator.

    For a CPU, loops are vectorized as wide as a register, where MetaSchedule takes up to 64 elements. An epilogue that
    is wider than the accumulators prevents LLVM from holding them in registers. For a GPU, MetaSchedule would by itself
    take the space with tensor cores for everything, threads with more sums than registers, and static memory alone.
    """
    if target.kind.name == "cuda":
        kind = "cuda-tensorcore" if prepare_tensor_cores(workload, target) else "cuda"
        of_gpus = ms.TuneContext(mod=workload.mod, target=target, space_generator=kind).space_generator
        return _changed(of_gpus, postprocs=[FitsRegisters(), *map(_with_own_limits, of_gpus.postprocs)])
    usual = ms.TuneContext(mod=workload.mod, target=target, space_generator="post-order-apply").space_generator
    usual = _changed(usual, sch_rules=[_inlining() if _inlines(rule) else rule for rule in usual.sch_rules])
    if winograd.is_winograd(workload.mod):
        return winograd.space(usual)
    lanes = unit_for(workload.mod, vector_unit(target)).lanes
    if rows.row_shape(workload.mod, lanes):
        return rows.space(workload.mod, usual, lanes)
    if integers.is_integer(workload.mod):
        return integers.space(usual, workload.mod, target)
    return _changed(usual, sch_rules=[_narrow(lanes) if _vectorizes(rule) else rule for rule in usual.sch_rules])


def _changed(space: Any, **changes: Any) -> Any:
    kept = {name: getattr(space, name) for name in ("sch_rules", "postprocs", "mutator_probs")}
    return ms.space_generator.PostOrderApply(**{**kept, **changes})


def _with_own_limits(postproc: Any) -> Any:
    return FitsSharedMemory() if isinstance(postproc, ms.postproc.VerifyGPUCode) else postproc


def _inlines(rule: Any) -> bool:
    return isinstance(rule, ms.schedule_rule.AutoInline)


def _inlining() -> Any:
    """MetaSchedule's rule for CPUs takes a selection of two numbers for a branch. So a leaky ReLU would not be computed
    with the operator behind it, and the result would go through memory in between. Padding is a branch.
    """
    return ms.schedule_rule.AutoInline(
        into_producer=False,
        into_consumer=True,
        inline_const_tensor=True,
        disallow_if_then_else=False,
        require_injective=True,
        require_ordered=True,
        disallow_op=["tirx.exp", "prim.if_then_else"],
    )


def _vectorizes(rule: Any) -> bool:
    return isinstance(rule, ms.schedule_rule.ParallelizeVectorizeUnroll)


def _narrow(lanes: int) -> Any:
    return ms.schedule_rule.ParallelizeVectorizeUnroll(
        max_jobs_per_core=_JOBS_A_CORE, max_vectorize_extent=lanes, unroll_max_steps=_UNROLL_STEPS, unroll_explicit=True
    )


_POPULATION, _GENERATIONS = 64, 2
"""of one round: an eighth of MetaSchedule's population for half its generations (docs/decisions/23-search.md)"""
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


class OperatorSearch(Trials):
    """Candidates out, run times in."""

    def __init__(self, workload: Any, target: Any, seed: int, threads: int) -> None:
        super().__init__(
            features=lambda sch: features_of(sch.trace),
            kept=int(_POPULATION * _MEASURED_PART),
            text=lambda sch: write_trace(sch.trace),
            key=_digest,
        )
        load_intrinsics(target)
        prepare_tensor_cores(workload, target)  # traces that were measured before may name them
        self._workload = workload
        self._target = target
        self._evolution = EvolutionarySearch(
            population_size=_POPULATION, genetic_num_iters=_GENERATIONS, init_min_unmeasured=1
        )
        self._seed = seed % (2**31 - 2) + 1
        self._threads = threads
        self._returned: set[int] = set()
        """schedules that the evolution has returned: it returns each only once"""
        self._donated: Sequence[str] = ()
        self._first = self._beginnings()

    # A design space takes a tenth of a second of an implementation that may never be searched, and the state of an
    # evolution as long again: a first candidate needs no evolution.

    @cached_property
    def _context(self) -> Any:
        return ms.TuneContext(
            mod=self._workload.mod,
            target=self._target,
            space_generator=space_for(self._workload, self._target),
            search_strategy=self._evolution,
            rand_state=self._seed,
            num_threads=self._threads,
        )

    @cached_property
    def spaces(self) -> Any:
        """Schedules with open decisions."""
        return with_async_copies(self._context.generate_design_space(), self._target)

    @cached_property
    def _strategy(self) -> Any:
        """The evolution, ready to draw."""
        model = SurrogateModel(self._surrogate, _PRESSURE)
        # The strategy needs numbers of trials and a database, but only its own rounds read them.
        self._context.pre_tuning(1, 1, self.spaces, ms.database.MemoryDatabase(), model)
        return self._evolution

    @property
    def postprocs(self) -> Any:
        """The rules that make a sampled schedule fit the target."""
        return self._context.space_generator.postprocs

    def propose(self, count: int, name: Callable[[str], str]) -> list[dict[str, str]]:
        """Up to `count` candidates, those to propose again first, then new ones: `candidate` (named by `name` from the
        trace) and `trace`.
        """
        fresh, self._again = self._again[:count], self._again[count:]
        fresh += self._unseen(self._first, count - len(fresh), name)
        if len(fresh) < count and len(self._surrogate) >= _FEWEST_MEASURED:
            fresh += self._evolved(count - len(fresh), name)
        fresh += self._drawn(count - len(fresh), name)
        return [self._hand_out(sch, name) for sch in fresh]

    def warm(self, history: Iterable[tuple[str, str, Mapping[str, float]]]) -> None:
        """Take in earlier trials of this operator: (candidate, trace, seconds or 0 by share)."""
        for name, trace, secs in history:
            sch = read_trace(trace, self._workload)
            self._seen.add(_digest(sch))
            self.note_trial(name, sch, secs)

    def transfer(self, traces: Iterable[str]) -> None:
        """Try the schedules of other operators first, adapted to this one."""
        self._donated = list(traces)

    def _beginnings(self) -> Iterator[Any]:
        """The first schedules to try: computed candidates and transferred ones, alternately."""
        sources = [self._computed(), self._transferred()]
        while sources:
            for source in list(sources):
                if (sch := next(source, None)) is None:
                    sources.remove(source)
                else:
                    yield sch

    def _computed(self) -> Iterator[Any]:
        if self._target.kind.name == "llvm":
            unit = unit_for(self._workload.mod, vector_unit(self._target))
            yield from first_candidates(self._workload, self.spaces, self.postprocs, unit)

    def _transferred(self) -> Iterator[Any]:
        if self._donated:
            yield from seeds(self._donated, self._workload.mod, self.spaces, self.postprocs)

    def _drawn(self, count: int, name: Callable[[str], str]) -> list[Any]:
        """Up to `count` random ones; fewer when the space holds no more."""
        fresh: list[Any] = []
        size, barren = count, 0
        while len(fresh) < count and barren < _BARREN_DRAWS:
            found = self._unseen(_sample(self._strategy, size), count - len(fresh), name)
            fresh += found
            barren = 0 if found else barren + 1
            # For a GPU the postprocs refuse at least nine of ten samples: few of a small draw would be left.
            size = max(size, min(2 * size, _POPULATION))
        return fresh

    def _evolved(self, count: int, name: Callable[[str], str]) -> list[Any]:
        """The best of an evolution by the surrogate, and a few of its random beginnings."""
        known = self._fastest.items()
        drawn = list(_sample(self._strategy, _POPULATION - len(known)))
        if not known and not drawn:
            return []
        random = int(count * _RANDOM_PART)
        # Known schedules that were never returned come back among the best: request this many more.
        again = sum(digest not in self._returned for digest in map(_digest, known))
        found = list(_evolve(self._strategy, known + drawn, count - random + again))
        self._returned.update(map(_digest, found))
        return self._unseen(found, count - random, name) + self._unseen(drawn, random, name)


def _digest(sch: Any) -> int:
    return int(tvm_ffi.structural_hash(sch.mod))
