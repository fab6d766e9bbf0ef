"""The tuner instance's child: MetaSchedule's search for the instance's operators.

Search state lives here and nowhere else. A new operator is warmed from its trials in the log. The operator that was
opened or proposed for longest ago is forgotten first.

Several implementations of an operator compete for its trials. The search for each gets trials in proportion to the
speed of its best candidate, and a slow one still a few. An implementation that is behind after a few trials may be
ahead after many, and at another share. The search for the decisions of a Triton kernel takes the best estimates first,
then the surrogate's choice of all.
"""

import math
import random
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fractune_core.errors import FractuneError
from fractune_core.operators import DIRECT, INEXACT, TRITON, implementation_of, text_of, trace_of
from fractune_core.records import candidate_id
from fractune_workers.children.layouts.kernels.implementations import IMPLEMENTATIONS, order_of
from fractune_workers.children.layouts.kernels.integers import INTEGERS
from fractune_workers.children.recurrent.tilings import recurrence_in, tilings
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.searching.trials import OneCandidate, Trials
from fractune_workers.children.triton_kernels.attention.kernel_operators import AnyDecisions, kernel_operator
from fractune_workers.children.triton_kernels.sources import is_alternative
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus
from fractune_workers.children.tvm_api.target import load_target
from fractune_workers.children.tvm_api.traces import args_of, read_workloads

_FEWEST_MEASURED = 8
"""with fewer measured candidates the surrogate knows less than the estimate"""
_SCORED = 1024
"""candidates among which the surrogate chooses"""
_RANDOM_PART = 1 / 8
_KEPT = 12


class TritonSearch(Trials):
    """Candidates out, run times in: as `OperatorSearch`, of the decisions that fit the operator and the target."""

    def __init__(self, workload: Any, target: Any, seed: int) -> None:
        super().__init__(features=lambda each: each.features, kept=_KEPT, text=lambda each: each.text)
        self._operator = kernel_operator(workload.mod["main"], target)
        self._random = random.Random(seed)
        self._transferred: list[AnyDecisions] = []
        self._units: tuple[int, ...] | None = None
        self.expect([])

    def expect(self, units: Sequence[int]) -> None:
        """The SMs of the shares that it is searched for. A persistent kernel has a program on each SM of a share."""
        if self._units == tuple(units):
            return
        self._units = tuple(units)
        self._space = self._operator.fitting(sorted(set(units)))
        self._first = self._operator.first(self._space, units)

    def propose(self, count: int, name: Callable[[str], str]) -> list[dict[str, str]]:
        """Up to `count` candidates: `candidate` (named by `name` from the decisions' text) and `trace`."""
        fresh, self._again = self._again[:count], self._again[count:]
        for source in (self._beginnings(), self._chosen(count - len(fresh)), self._first):
            fresh += self._unseen(source, count - len(fresh), name)
        return [self._hand_out(decisions, name) for decisions in fresh]

    def warm(self, history: Iterable[tuple[str, str, Mapping[str, float]]]) -> None:
        """Take in earlier trials of this operator. Those of an older kernel say nothing."""
        for name, text, secs in history:
            for decisions in self._readable([text]):
                self._seen.add(decisions)
                self.note_trial(name, decisions, secs)

    def transfer(self, texts: Iterable[str]) -> None:
        """Try the decisions of other operators first, those that fit this one."""
        fitting_here = set(self._space)
        self._transferred = [each for each in self._readable(texts) if each in fitting_here]

    def _beginnings(self) -> Iterator[AnyDecisions]:
        """The first candidates: estimates and transferred ones, alternately."""
        while self.measured < _FEWEST_MEASURED:
            if self._transferred:
                yield self._transferred.pop(0)
            first = next(self._first, None)
            if first is None:
                return
            yield first

    def _chosen(self, count: int) -> Iterator[AnyDecisions]:
        """The surrogate's choice of those not seen yet, and a few at random."""
        if self.measured < _FEWEST_MEASURED or count < 1:
            return
        left = [each for each in self._space if each not in self._seen]
        drawn = self._random.sample(left, min(_SCORED, len(left)))
        scores = self._surrogate.scores([each.features for each in drawn])
        best = [drawn[at] for at in sorted(range(len(drawn)), key=lambda at: -scores[at])]
        at_random = int(count * _RANDOM_PART)
        yield from (*best[: count - at_random], *drawn[:at_random], *best)

    def _readable(self, texts: Iterable[str]) -> Iterator[AnyDecisions]:
        for text in texts:
            try:
                yield self._operator.read(text)
            except FractuneError:
                continue


_UNJUDGED = 4
"""measured candidates, below which an implementation counts as fast as the fastest"""
_PRESSURE = 8.0
"""how fast an implementation's part falls with its best time: an implementation that takes 1.3 times as long gets an
eighth"""
_FLOOR = 1 / 16
"""of the part of the fastest"""


class CompetingSearches:
    """Candidates out, run times in: as `OperatorSearch`, of an operator's workloads by implementation."""

    def __init__(self, workloads: Mapping[str, Any], target: Any, seed: int, threads: int) -> None:
        recurrence = recurrence_in(workloads[DIRECT].mod)
        self._searches: dict[str, Any]
        if recurrence is not None:
            self._searches = {name: OneCandidate() for name in tilings(recurrence, target)}
        else:
            self._searches = {
                name: TritonSearch(workloads[name], target, seed)
                if name == TRITON
                else OperatorSearch(workloads[name], target, seed, threads)
                for name in _likeliest_first(workloads)
                if name == TRITON or not is_alternative(workloads[DIRECT].mod["main"])
            }
        self._proposed_counts = dict.fromkeys(self._searches, 0)

    def propose(
        self,
        count: int,
        name: Callable[[str], str],
        *,
        exact: bool,
        lost: Sequence[str] = (),
        known: Collection[str] = (),
    ) -> list[dict[str, str]]:
        """Up to `count` candidates never proposed before.

        `exact`: only of implementations that round like the operator. `lost`: candidates that were proposed and never
        measured; they come first. `known`: candidates that must never be proposed.
        """
        for search in self._searches.values():
            search.offer_again(lost)
            search.leave_out(known)
        open_ones = [each for each in self._searches if not exact or each not in INEXACT]
        proposed: list[dict[str, str]] = []
        while len(proposed) < count and open_ones:
            parts = self._divided(count - len(proposed), open_ones)
            for each, part in parts.items():
                found = self._proposed(each, part, name)
                proposed += found
                if len(found) < part:
                    open_ones.remove(each)
        return proposed

    def _proposed(self, implementation: str, count: int, name: Callable[[str], str]) -> list[dict[str, str]]:
        found = self._searches[implementation].propose(count, lambda trace: name(text_of(implementation, trace)))
        self._proposed_counts[implementation] += len(found)
        return [{**item, "trace": text_of(implementation, item["trace"])} for item in found]

    def learn(self, results: Iterable[tuple[str, str, float]], shares: Collection[str]) -> None:
        """As `OperatorSearch.learn`: each search knows its own candidates."""
        trials = list(results)
        for search in self._searches.values():
            search.learn(trials, shares)

    def expect(self, units: Sequence[int]) -> None:
        """The SMs of the shares that it is searched for."""
        for search in self._searches.values():
            if isinstance(search, TritonSearch):
                search.expect(units)

    def warm(self, history: Iterable[tuple[str, str, Mapping[str, float]]]) -> None:
        """Take in earlier trials: (candidate, its text, seconds or 0 by share)."""
        by_name: dict[str, list[tuple[str, str, Mapping[str, float]]]] = defaultdict(list)
        for candidate, text, secs in history:
            by_name[implementation_of(text)].append((candidate, trace_of(text), secs))
        for name, trials in by_name.items():
            if name in self._searches:
                self._searches[name].warm(trials)
                self._proposed_counts[name] += len(trials)

    def transfer(self, texts: Iterable[str]) -> None:
        """Try the candidates of other operators first, adapted to this one."""
        by_name: dict[str, list[str]] = defaultdict(list)
        for text in texts:
            by_name[implementation_of(text)].append(trace_of(text))
        for name, search in self._searches.items():
            search.transfer(by_name[name])

    def _divided(self, count: int, names: list[str]) -> dict[str, int]:
        """The number of the next candidates for each implementation. One candidate after the other goes to the
        implementation that is furthest behind its part.
        """
        parts = self._parts(names)
        divided = dict.fromkeys(names, 0)

        def due(name: str) -> tuple[float, int]:
            """The time when the implementation's next candidate is due. The first few count nothing, and go round."""
            count = self._proposed_counts[name] + divided[name]
            return max(0, count + 1 - _UNJUDGED) / parts[name], count

        for _ in range(count):
            divided[min(names, key=due)] += 1
        return {name: part for name, part in divided.items() if part}

    def _parts(self, names: list[str]) -> dict[str, float]:
        """Of the trials, up to a factor."""
        best_s = {name: self._searches[name].best_s for name in names}
        fastest_s = min(best_s.values())
        parts = dict.fromkeys(names, 1.0)
        for name, secs in best_s.items():
            if self._searches[name].measured >= _UNJUDGED and fastest_s < math.inf:
                parts[name] = max(_FLOOR, (fastest_s / secs) ** _PRESSURE)
        return parts


def _likeliest_first(workloads: Mapping[str, Any]) -> list[str]:
    """In this order they have their turns, as long as nothing is known."""
    integers = [name for name in INTEGERS if name in workloads]
    others = [name for name in workloads if name not in integers]
    if not IMPLEMENTATIONS.keys() & others:
        return [*integers, *others]
    expected = order_of([tuple(shape) for _, _, shape, *_ in args_of(workloads[DIRECT])])
    return integers + sorted(others, key=lambda name: expected.index(name) if name in expected else len(expected))


_OPERATORS_KEPT = 256


class SearcherChild:
    """All operators of one tuner instance."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._operators: OrderedDict[tuple[str, str, str], CompetingSearches] = OrderedDict()

    def knows(self, workload_hash: str, target_key: str, of: str = "") -> bool:
        """`of`: the owner of the search. An operator may have several searches, which share no knowledge."""
        return (workload_hash, target_key, of) in self._operators

    def open(
        self,
        workload_hash: str,
        workload: str,
        target: str,
        target_key: str,
        seed: int,
        history: list[dict[str, Any]],
        transferred: list[str],
        of: str = "",
    ) -> None:
        """Take on an operator: its workloads in the log's form, its earlier trials (PastTrial), and other operators'
        traces to try first.
        """
        # Operators of one job must not all draw the same random numbers.
        own_seed = seed + int(workload_hash[:8], 16)
        search = CompetingSearches(read_workloads(workload), load_target(target), own_seed, self._threads)
        search.warm((trial["candidate"], trial["trace"], trial["secs"]) for trial in history)
        search.transfer(transferred)
        self._operators[workload_hash, target_key, of] = search
        while len(self._operators) > _OPERATORS_KEPT:
            self._operators.popitem(last=False)

    def learn(
        self,
        workload_hash: str,
        target_key: str,
        results: list[tuple[str, str, float]],
        shares: list[str],
        of: str = "",
        units: Sequence[int] = (),
    ) -> None:
        """Take in results of an operator: (candidate, share, seconds or 0 for a failure); unknown ones are ignored.
        From now on the search is for `shares`, and expects these `units` of the device at them.
        """
        search = self._operators.get((workload_hash, target_key, of))
        if search is not None:
            search.learn(results, shares)
            search.expect(units)

    def propose(
        self,
        workload_hash: str,
        target_key: str,
        count: int,
        *,
        of: str = "",
        exact: bool = False,
        lost: Sequence[str] = (),
        known: Sequence[str] = (),
    ) -> list[dict[str, str]]:
        """Up to `count` new candidates of an open operator; fewer when its spaces hold no more.

        `exact`: only candidates that round like the operator itself. `lost`: candidates that were proposed and never
        measured; they come first. `known`: candidates that must not be proposed from now on.
        """
        self._operators.move_to_end((workload_hash, target_key, of))
        search = self._operators[workload_hash, target_key, of]
        name = partial(candidate_id, workload_hash, target_key)
        return search.propose(count, name, exact=exact, lost=lost, known=known)


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The methods; the one argument is the number of threads to search with."""
    stay_off_gpus()
    child = SearcherChild(int(args[0]))
    return {"knows": child.knows, "open": child.open, "learn": child.learn, "propose": child.propose}
