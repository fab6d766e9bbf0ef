"""The search for one operator with several implementations: their searches compete for its trials.

Each search gets trials in proportion to the speed of its best candidate, and a slow one still a few. An implementation
that is behind after a few trials may be ahead after many, and at another share.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from fractune_core.operators import DIRECT, INEXACT, TRITON, implementation_of, text_of, trace_of
from fractune_workers.children.layouts.kernels.implementations import IMPLEMENTATIONS, order_of
from fractune_workers.children.layouts.kernels.integers import INTEGERS
from fractune_workers.children.recurrent.tilings import tilings
from fractune_workers.children.recurrent.vectors import recurrence_in
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.searching.trials import OneCandidate
from fractune_workers.children.searching.triton_search import TritonSearch
from fractune_workers.children.triton_kernels.marks import is_alternative
from fractune_workers.children.tvm_api.traces import args_of

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
