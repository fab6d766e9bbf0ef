"""The search for the decisions of a Triton kernel: the best estimates first, then the surrogate's choice of all."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fractune_core.errors import FractuneError
from fractune_workers.children.searching.trials import Trials
from fractune_workers.children.triton_kernels.attention.kernel_operators import AnyDecisions, kernel_operator

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
