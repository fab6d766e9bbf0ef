"""Speed of a model on a part of a device: measured or stated, or predicted by the knee's curve and its error. Under CPU
limits it is simulated from the speeds at whole cores.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fractune_core.analysis.knee import Curve, CurveKind, fit_curve
from fractune_core.analysis.limit_fitting import MARGIN
from fractune_core.analysis.limit_prediction import by_latency, predict, predictable
from fractune_core.cpu_limits import MILLICORES, CpuLimit, Service, service_of_time
from fractune_core.errors import BadRequest
from fractune_core.planning.devices import DeviceType


class Basis(StrEnum):
    MEASURED = "measured"
    """of the whole model, in the tuning log or a bundle"""
    OPERATORS = "operators"
    """sum of its operators' measured times, and the overhead of a call"""
    DISTURBED = "at most, disturbed"
    """of the whole model, while other programs were busy: it takes at most that"""
    STATED = "stated"
    """by the plan file"""
    PREDICTED = "predicted"
    """predicted, padded by the prediction error"""


_BATCHES = 2_000
"""of a simulation under a CPU limit"""
CALL_OVERHEAD_S = 65e-6
"""Overhead of one call of a model, beyond its operators, where no share has it measured: that of a call of a perceptron
with operators of 0.3 us from Python"""


def secs_by_operators(operators_s: Mapping[int, float], whole_s: Mapping[int, float]) -> dict[int, float]:
    """Seconds of a model by units at which only its operators were timed. `operators_s` are the sums of their times.
    The overhead is the largest difference to `whole_s`, the times of the whole model, where both are known.
    """
    beyond_s = max((whole_s[units] - operators_s[units] for units in whole_s if units in operators_s), default=0.0)
    return {units: secs + max(beyond_s, CALL_OVERHEAD_S) for units, secs in operators_s.items() if units not in whole_s}


@dataclass(frozen=True)
class Row:
    """One way of running a model on `units` units."""

    units: int
    """slices, SMs or cores"""
    batch: int
    """requests in one run"""
    processes: int
    """processes that share the part, each with its own batch"""
    throughput_per_s: float
    """requests of all processes together"""
    latency_s: float
    """of one batch"""
    basis: Basis = Basis.STATED
    error: float = 0.0
    """of a prediction: the padding of its time, as a fraction"""

    @property
    def expected_per_s(self) -> float:
        """The throughput without the padding."""
        return self.throughput_per_s * (1 + self.error)

    @property
    def secs(self) -> float:
        """Time between the ends of two batches of one process."""
        return self.batch * self.processes / self.throughput_per_s


def measured_rows(
    operators_s: Mapping[int, float], whole_s: Mapping[int, float], disturbed_s: Mapping[int, float], batch: int
) -> tuple[Row, ...]:
    """A row at each number of units. It is by the measured time of the whole model, else by its operators' times.
    Without both it is by a time of the whole model that other programs disturbed. One run serves `batch` requests.
    Times are seconds by units.
    """
    found = {units: (secs, Basis.DISTURBED) for units, secs in disturbed_s.items()}
    found |= {units: (secs, Basis.OPERATORS) for units, secs in secs_by_operators(operators_s, whole_s).items()}
    found |= {units: (secs, Basis.MEASURED) for units, secs in whole_s.items()}
    return tuple(Row(units, batch, 1, batch / secs, secs, basis) for units, (secs, basis) in sorted(found.items()))


class ModelSpeeds:
    """The rows of one model, by batch and number of processes, and a curve through each such series."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._series: dict[tuple[int, int], dict[int, Row]] = {}
        for row in rows:
            self._series.setdefault((row.batch, row.processes), {})[row.units] = row
        self._curves: dict[tuple[int, int], Curve] = {}

    def at(self, units: int) -> list[Row]:
        """Every way of running the model on `units` units. None below the smallest part of a series, where memory may
        be too small; beyond the largest part, no gain is assumed.
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
        # Waiting for the other processes of a part is within a batch's latency, not between the ends of batches.
        slowest = max(row.latency_s / row.secs for row in rows.values())
        return Row(units, batch, processes, batch * processes / secs, secs * slowest, Basis.PREDICTED, error)


def safe_secs(curve: Curve, units: int) -> tuple[float, float]:
    """The predicted seconds, padded by the curve's expected error, at most as slow as the measured parts allow; and the
    padding as a fraction.

    Where the error is not known (one part was measured, or none lies between those measured), the slowest allowed time
    counts. Beyond the largest measured part this is no gain.
    """
    slowest = curve.bounds_at(units)[1]
    if curve.kind is CurveKind.ONE_POINT:
        return slowest, 0.0
    predicted = curve.secs_at(units)
    beyond = units > max(curve.measured)
    secs = slowest if beyond or curve.error is None else min(predicted * (1 + curve.error), slowest)
    return secs, max(secs / predicted - 1, 0.0) if math.isfinite(secs) else 0.0


def limited_rows(rows: Sequence[Row], device: DeviceType) -> tuple[Row, ...]:
    """A row at each CPU limit of `device` for which a prediction holds, simulated from `rows` at whole cores.

    A batch takes at most what 99 % of the batches take in a loop under the limit, its stops included. With one process
    the model has the number of threads that `load` takes under the limit. With several, each has one thread. Predicted
    times are padded by the margin of `fit`. One disturbed time disturbs them all. Raises BadRequest for rows of several
    processes.
    """
    if several := next((row for row in rows if row.processes > 1), None):
        raise BadRequest(
            f"a row has {several.processes} processes on cpu:{several.units}: under CPU limits the plan finds their "
            "number; give the times of one process"
        )
    basis = Basis.DISTURBED if any(row.basis is Basis.DISTURBED for row in rows) else Basis.PREDICTED
    return tuple(
        replace(row, basis=basis)
        for batch in sorted({row.batch for row in rows})
        for part in device.parts
        for row in _rows(
            [service_of_time(each.units, each.secs) for each in rows if each.batch == batch], part.units, batch
        )
    )


def _rows(services: Sequence[Service], limit_m: int, batch: int) -> Iterator[Row]:
    limit = CpuLimit(limit_m)
    if fitting := [each for each in services if predictable(each, limit)]:
        best = by_latency(fitting, limit)[0].threads
        yield _row(next(each for each in fitting if each.threads == best), 1, limit, batch)
    processes = -(-limit_m // MILLICORES)
    for one in services:
        if processes > 1 and one.threads == 1 and predictable(one, limit, processes):
            yield _row(one, processes, limit, batch)


def _row(service: Service, processes: int, limit: CpuLimit, batch: int) -> Row:
    found = predict(service.slower(MARGIN), limit, replicas=processes, requests=_BATCHES)
    return Row(limit.quota_m, batch, processes, batch * found.per_s, found.p99_s, Basis.PREDICTED, MARGIN)
