"""The candidates of a search: proposed, measured, and the fastest; and the surrogate that predicts their speed.
Only what was measured at all its shares counts.

The surrogate is a Gaussian process over the decisions of a trace. MetaSchedule searches with boosted trees over
hundreds of code features. A few dozen candidates are too few for them, and reading those features from the code is half
of its search's CPU time. The decisions (tile sizes, unrolling, compute locations) are a handful of numbers that exist
already.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import PyCostModel

from fractune_core.operators import NO_DECISIONS
from fractune_core.records import joint_time_s

_LENGTHS = (0.5, 1.0, 2.0, 4.0)
_NOISES = (0.05, 0.2, 0.5)
"""The length scales and noise variances to try, in units of the standardised features and log times."""
_MOST_POINTS = 512
"""A fit costs the cube of this; beyond it the fastest half and the newest half are kept"""
_FAILED = 2.0
"""A candidate that failed counts as this many times slower than the slowest"""
_OPTIMISM = 1.0
"""Standard deviations: uncertain candidates get the benefit of the doubt."""

_Array = npt.NDArray[np.floating[Any]]


class Surrogate:
    """Predicts the speed of candidates from their features, which are numbers by name; a missing one is 0.

    Log times under a Matern 3/2 kernel. Length scale and noise follow from the marginal likelihood (Rasmussen and
    Williams, Gaussian Processes for Machine Learning, 2006, chapters 2 and 5). The score is the upper confidence bound
    (Srinivas et al., ICML 2010).
    """

    def __init__(self) -> None:
        self._points: list[Mapping[str, float]] = []
        self._secs: list[float] = []
        self._fit: _Fit | None = None

    def __len__(self) -> int:
        return len(self._points)

    def clear(self) -> None:
        """Forget everything."""
        self._points, self._secs, self._fit = [], [], None

    def add(self, points: Sequence[Mapping[str, float]], secs: Sequence[float]) -> None:
        """Learn measured candidates: their features and seconds, 0 for a failure."""
        self._points += points
        self._secs += secs
        self._fit = None

    def scores(self, points: Sequence[Mapping[str, float]]) -> _Array:
        """Above 0, the higher the faster: hopeful speed relative to the fastest candidate known."""
        if not any(self._secs):
            return np.ones(len(points))
        if self._fit is None:
            kept = self._kept()
            self._fit = _Fit([self._points[at] for at in kept], self._log_speeds()[kept])
        return self._fit.scores(points)

    def _log_speeds(self) -> _Array:
        """Negative log times; the fastest has 0."""
        secs = np.array(self._secs)
        slowest = secs.max()
        return -np.log(np.where(secs > 0, secs, slowest * _FAILED) / secs[secs > 0].min())

    def _kept(self) -> list[int]:
        count = len(self._secs)
        if count <= _MOST_POINTS:
            return list(range(count))
        fastest = set(np.argsort(-self._log_speeds(), kind="stable")[: _MOST_POINTS // 2].tolist())
        newest = [at for at in reversed(range(count)) if at not in fastest]
        return sorted([*fastest, *newest[: _MOST_POINTS // 2]])


class _Fit:
    """The process, conditioned on some points."""

    def __init__(self, points: Sequence[Mapping[str, float]], log_speeds: _Array) -> None:
        self._names = sorted({name for point in points for name in point})
        raw = self._matrix(points)
        self._middle, self._width = raw.mean(axis=0), raw.std(axis=0)
        self._known = self._standardised(raw)
        self._mean, self._scale = log_speeds.mean(), log_speeds.std() or 1.0
        wanted = (log_speeds - self._mean) / self._scale
        squares = _squares(self._known, self._known)
        self._length, self._lower, self._weights = _most_likely(squares, wanted)

    def scores(self, points: Sequence[Mapping[str, float]]) -> _Array:
        near = _matern(_squares(self._standardised(self._matrix(points)), self._known), self._length)
        mean = near @ self._weights
        explained = (np.linalg.solve(self._lower, near.T) ** 2).sum(axis=0)
        hopeful = mean + _OPTIMISM * np.sqrt(np.maximum(1.0 - explained, 0.0))
        scores: _Array = np.exp(self._mean + self._scale * hopeful)
        return scores

    def _matrix(self, points: Sequence[Mapping[str, float]]) -> _Array:
        return np.array([[point.get(name, 0.0) for name in self._names] for point in points], dtype=float)

    def _standardised(self, raw: _Array) -> _Array:
        """Features that tell the known points apart, each with mean 0 and deviation 1 among them."""
        varied = self._width > 0
        standardised: _Array = (raw[:, varied] - self._middle[varied]) / self._width[varied]
        return standardised


def _most_likely(squares: _Array, wanted: _Array) -> tuple[float, _Array, _Array]:
    """Length scale, lower Cholesky factor and weights of the likeliest process."""
    found: list[tuple[float, float, _Array, _Array]] = []
    for length in _LENGTHS:
        kernel = _matern(squares, length)
        for noise in _NOISES:
            lower = np.linalg.cholesky(kernel + noise * np.eye(len(wanted)))
            weights = np.linalg.solve(lower.T, np.linalg.solve(lower, wanted))
            likelihood = -0.5 * float(wanted @ weights) - float(np.log(np.diag(lower)).sum())
            found.append((likelihood, length, lower, weights))
    _, length, lower, weights = max(found, key=lambda fit: fit[0])
    return length, lower, weights


def _squares(one: _Array, other: _Array) -> _Array:
    """Squared distances of all pairs of rows, per feature."""
    cross = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None] - 2.0 * one @ other.T
    squares: _Array = np.maximum(cross, 0.0) / max(one.shape[1], 1)
    return squares


def _matern(squares: _Array, length: float) -> _Array:
    ratio = np.sqrt(3.0 * squares) / length
    kernel: _Array = (1.0 + ratio) * np.exp(-ratio)
    return kernel


_PLACED = ("ComputeAt", "ReverseComputeAt")


def features_of(trace: Any) -> dict[str, float]:
    """Numbers by name: tile sizes as binary logarithms, other decisions unchanged, the count of each kind of step, and
    for a moved block the step that made its loop. A name means the same for all traces of one operator.
    """
    features: dict[str, float] = {}
    numbers: Counter[str] = Counter()
    for step, decision in trace.decisions.items():
        kind = step.kind.name
        name = f"{kind} {numbers[kind]}"
        numbers[kind] += 1
        if kind == "SamplePerfectTile":
            features.update({f"{name}.{level}": math.log2(int(size)) for level, size in enumerate(decision)})
        else:
            features[name] = float(int(decision))
    return features | _shape(trace)


def _shape(trace: Any) -> dict[str, float]:
    """The features that distinguish the sketches of an operator."""
    features: dict[str, float] = {}
    made: dict[Any, float] = {}
    for at, step in enumerate(trace.insts):
        kind = step.kind.name
        if kind == "EnterPostproc":
            break
        features[kind] = features.get(kind, 0.0) + 1.0
        made.update({made_here: at + place / 10 for place, made_here in enumerate(step.outputs)})
        if kind in _PLACED:
            features[f"{kind} {features[kind]:g} at"] = made.get(step.inputs[1], -1.0)
    return features


@derived_object
class SurrogateModel(PyCostModel):
    """A surrogate in the form in which MetaSchedule's evolution asks; it is taught directly."""

    def __init__(self, surrogate: Surrogate, pressure: float) -> None:
        super().__init__()
        self.surrogate = surrogate
        self._pressure = pressure

    def predict(self, context: Any, candidates: list[Any]) -> Any:
        del context
        scores = self.surrogate.scores([features_of(candidate.sch.trace) for candidate in candidates])
        return (scores / scores.max()).astype(np.float64) ** self._pressure


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
