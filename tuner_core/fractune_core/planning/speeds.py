"""How fast a model is on a part of a device: by what was measured or stated, else by the knee's curve and its error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fractune_core.analysis.knee import Curve, CurveKind, fit_curve


class Basis(StrEnum):
    MEASURED = "measured"
    """of the whole model, in the tuning log or a bundle"""
    OPERATORS = "operators"
    """the sum of its operators' measured times, and what a call of the model takes beyond them"""
    STATED = "stated"
    """by the plan file"""
    PREDICTED = "predicted"
    """by the curve through the others, the slower for its error"""


CALL_OVERHEAD_S = 65e-6
"""What one call of a model takes beyond its operators, where no share tells of this model: what a call of a perceptron
with operators of 0.3 us takes from Python"""


def secs_by_operators(operators_s: Mapping[int, float], whole_s: Mapping[int, float]) -> dict[int, float]:
    """Seconds of a model by units, at which only its operators were timed: `operators_s`, the sums of their times, and
    the most that the whole model took beyond them where both are known (`whole_s`).
    """
    beyond_s = max((whole_s[units] - operators_s[units] for units in whole_s if units in operators_s), default=0.0)
    return {units: secs + max(beyond_s, CALL_OVERHEAD_S) for units, secs in operators_s.items() if units not in whole_s}


@dataclass(frozen=True)
class Row:
    """A model on so many units, in one way of running it there."""

    units: int
    """slices, SMs or cores"""
    batch: int
    """requests that one run serves"""
    processes: int
    """that share the part, each with a batch of its own"""
    throughput_per_s: float
    """requests of all processes together"""
    latency_s: float
    """of one batch"""
    basis: Basis = Basis.STATED
    error: float = 0.0
    """of a prediction: what its time was lengthened by, as a fraction"""

    @property
    def expected_per_s(self) -> float:
        """The throughput without what the time was lengthened by."""
        return self.throughput_per_s * (1 + self.error)

    @property
    def secs(self) -> float:
        """Between the ends of two batches of one process."""
        return self.batch * self.processes / self.throughput_per_s


def measured_rows(operators_s: Mapping[int, float], whole_s: Mapping[int, float], batch: int) -> tuple[Row, ...]:
    """A row at each number of units: by the whole model's time where it was measured, else by its operators'. One run
    serves `batch` requests. Times in seconds by units.
    """
    summed_s = secs_by_operators(operators_s, whole_s)
    found = [(units, secs, Basis.MEASURED) for units, secs in whole_s.items()]
    found += [(units, secs, Basis.OPERATORS) for units, secs in summed_s.items()]
    return tuple(Row(units, batch, 1, batch / secs, secs, basis) for units, secs, basis in sorted(found))


class ModelSpeeds:
    """The rows of one model, by batch and number of processes, and a curve through each such series."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._series: dict[tuple[int, int], dict[int, Row]] = {}
        for row in rows:
            self._series.setdefault((row.batch, row.processes), {})[row.units] = row
        self._curves: dict[tuple[int, int], Curve] = {}

    def at(self, units: int) -> list[Row]:
        """Every way of running it on so many units. None below the smallest part that a series knows, where memory may
        be too small; beyond the largest, no gain is assumed.
        """
        found = (self._row(way, units) for way in self._series if min(self._series[way]) <= units)
        return list(found)

    def _row(self, way: tuple[int, int], units: int) -> Row:
        rows = self._series[way]
        if units in rows:
            return rows[units]
        if way not in self._curves:
            self._curves[way] = fit_curve({each: row.secs for each, row in rows.items()})
        secs, error = safe_secs(self._curves[way], units)
        batch, processes = way
        # A process that shares its part waits for the others within its latency, and not between its batches' ends.
        slowest = max(row.latency_s / row.secs for row in rows.values())
        return Row(units, batch, processes, batch * processes / secs, secs * slowest, Basis.PREDICTED, error)


def safe_secs(curve: Curve, units: int) -> tuple[float, float]:
    """The predicted seconds made longer by the error that the curve expects of itself, no longer than what the measured
    parts allow; and by what part they were made longer.

    Where nothing tells the error (one part was measured, or none lies between those measured) it is the slowest that is
    allowed. Beyond the largest part measured that is no gain.
    """
    slowest = curve.bounds_at(units)[1]
    if curve.kind is CurveKind.ONE_POINT:
        return slowest, 0.0
    predicted = curve.secs_at(units)
    beyond = units > max(curve.measured)
    secs = slowest if beyond or curve.error is None else min(predicted * (1 + curve.error), slowest)
    return secs, max(secs / predicted - 1, 0.0) if math.isfinite(secs) else 0.0
