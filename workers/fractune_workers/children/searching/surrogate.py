"""The surrogate of an operator: a Gaussian process over the decisions of a trace predicts the speed of candidates.

MetaSchedule searches with boosted trees over hundreds of code features. A few dozen candidates are too few for them,
and reading those features from the code is half of its search's CPU time. The decisions of a trace (tile sizes,
unrolling, compute locations) are a handful of numbers that exist already.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import PyCostModel

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
