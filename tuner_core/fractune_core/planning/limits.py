"""Speeds of a model under CPU limits, simulated from its speeds at whole cores.

A batch takes at most what 99 % of the batches take in a loop under the limit, its stops included. With one process the
model has the number of threads that `load` takes under the limit. With several, each has one thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fractune_core.analysis.cpu_limits.fitting import MARGIN
from fractune_core.analysis.cpu_limits.limits import CpuLimit, Service, service_of_time
from fractune_core.analysis.cpu_limits.prediction import by_latency, predict, predictable
from fractune_core.cpu_limits import MILLICORES
from fractune_core.errors import BadRequest
from fractune_core.planning.devices import DeviceType
from fractune_core.planning.speeds import Basis, Row

_BATCHES = 2_000
"""of a simulation"""


def limited_rows(rows: Sequence[Row], device: DeviceType) -> tuple[Row, ...]:
    """A row at each limit of `device` for which a prediction holds; the units of `rows` are cores. Predicted times are
    padded by the margin of `fit`. One disturbed time disturbs them all. Raises BadRequest for rows of several
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
