"""The candidates of a search: proposed, measured, and the fastest. Only what was measured at all its shares counts."""

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fractune_core.operators import NO_DECISIONS
from fractune_core.records import joint_time_s
from fractune_workers.children.searching.surrogate import Surrogate


@dataclass
class Trial:
    """A candidate that was measured somewhere."""

    features: Mapping[str, float]
    item: Any | None
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


class Trials:
    """Of candidates of any kind: `features` are numbers of one by name, `kept` the number of the fastest. `text` is
    that of a trace; candidates of equal `key` are one.
    """

    def __init__(
        self,
        features: Callable[[Any], Mapping[str, float]],
        kept: int,
        text: Callable[[Any], str] = str,
        key: Callable[[Any], Any] = lambda item: item,
    ) -> None:
        self._features = features
        self._text, self._key = text, key
        self._seen = set[Any]()
        """the keys of those that were proposed, measured or left out"""
        self._surrogate = Surrogate()
        self._pending: dict[str, Any] = {}
        """those that were proposed, and not measured anywhere yet"""
        self._trials: dict[str, Trial] = {}
        self._shares: frozenset[str] = frozenset()
        """that it is searched for"""
        self._known: frozenset[str] = frozenset()
        """candidates that must not be proposed"""
        self._again: list[Any] = []
        """those to propose once more"""
        self._fastest = Fastest(kept)

    @property
    def measured(self) -> int:
        """The number of candidates with known times, failures too."""
        return len(self._surrogate)

    @property
    def best_s(self) -> float:
        """Seconds of the fastest candidate; infinite without one."""
        return self._fastest.best_s

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
        changed: dict[str, Trial] = {}
        for name, share, secs in results:
            trial = self._trials.get(name)
            if trial is None and name in self._pending:
                item = self._pending.pop(name)
                trial = self._trials[name] = Trial(self._features(item), item)
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

    def _unseen(self, found: Iterable[Any], count: int, name: Callable[[str], str]) -> list[Any]:
        """The first `count` new ones, named by `name` from their texts; the rest stays in the iterator."""
        fresh: list[Any] = []
        found = iter(found)
        while len(fresh) < count and (item := next(found, None)) is not None:
            key = self._key(item)
            if key not in self._seen:
                self._seen.add(key)
                if not self._known or name(self._text(item)) not in self._known:
                    fresh.append(item)
        return fresh

    def _hand_out(self, item: Any, name: Callable[[str], str]) -> dict[str, str]:
        text = self._text(item)
        candidate = name(text)
        self._pending[candidate] = item
        return {"candidate": candidate, "trace": text}

    def note_trial(self, name: str, item: Any, secs: Mapping[str, float]) -> None:
        """Take in an earlier trial: seconds or 0 by share."""
        self._trials[name] = Trial(self._features(item), item, dict(secs))

    def _take_in(self, trials: Iterable[Trial]) -> None:
        """Learn from those that are measured at all shares by now."""
        new = [trial for trial in trials if not trial.counts]
        joint = [(trial, secs) for trial in new if (secs := trial.joint_s(self._shares)) is not None]
        self._surrogate.add([trial.features for trial, _ in joint], [secs for _, secs in joint])
        for trial, secs in joint:
            trial.counts = True
            beaten = self._fastest.add(trial, secs) if secs > 0 and trial.item is not None else trial
            if beaten is not None:
                beaten.item = None


class OneCandidate(Trials):
    """The search of an implementation that leaves nothing to decide: as `OperatorSearch`."""

    def __init__(self) -> None:
        super().__init__(features=lambda _trace: {}, kept=1)
        self._again = [NO_DECISIONS]

    def propose(self, count: int, name: Callable[[str], str]) -> list[dict[str, str]]:
        """The one candidate, unless it was proposed."""
        fresh, self._again = self._again[:count], self._again[count:]
        self._pending.update({name(each): each for each in fresh})
        return [{"candidate": name(each), "trace": each} for each in fresh if name(each) not in self._known]

    def warm(self, history: Iterable[tuple[str, str, Mapping[str, float]]]) -> None:
        """Take in its earlier trial."""
        for name, trace, secs in history:
            self._again = []
            self.note_trial(name, trace, secs)

    def transfer(self, _traces: Iterable[str]) -> None:
        """Nothing: it leaves nothing to decide."""


class Fastest:
    """The `size` fastest trials."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._added = 0
        self._heap: list[tuple[float, int, Trial]] = []

    def clear(self) -> None:
        self._heap = []

    def add(self, trial: Trial, secs: float) -> Trial | None:
        """Add a trial; return the one that is not among the fastest any more, if there is one."""
        self._added += 1  # no two entries are equal, so that trials are never compared
        heapq.heappush(self._heap, (-secs, -self._added, trial))
        return heapq.heappop(self._heap)[2] if len(self._heap) > self._size else None

    @property
    def best_s(self) -> float:
        return min((-secs for secs, _, _ in self._heap), default=math.inf)

    def items(self) -> list[Any]:
        """The fastest first."""
        return [trial.item for _, _, trial in sorted(self._heap, reverse=True)]
