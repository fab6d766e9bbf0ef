"""The validations of one operator in one namespace, which never change, and the lookups of a match in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fractune_core.operators import is_exact
from fractune_core.records import UNTUNED, Kind, Status, TuningRecord, candidate_id

Times = Mapping[int, Mapping[str, float]]
"""Seconds by granted units, then by finalist."""


@dataclass(frozen=True)
class MeasuredTimes:
    """Published records of one operator on one device, for one target, under one mechanism."""

    records: tuple[TuningRecord, ...]

    @cached_property
    def default(self) -> str:
        """Candidate id of the untuned default. There must be a record."""
        some = self.records[0]
        return candidate_id(some.workload_hash, some.target_key, UNTUNED)

    @cached_property
    def _fastest(self) -> Mapping[int, Mapping[str, tuple[float, str, TuningRecord]]]:
        """By granted units, then by candidate: the fastest of several measurements, with its sort key."""
        found: dict[int, dict[str, tuple[float, str, TuningRecord]]] = {}
        for record in self.records:
            row, name = found.setdefault(record.granted.units, {}), record.candidate_id
            order = choosing_order(record)
            if name not in row or order < row[name][:2]:
                row[name] = (*order, record)
        return found

    @cached_property
    def choosing(self) -> Times:
        """Times that choose among the candidates."""
        return {units: {name: secs for name, (secs, _, _) in row.items()} for units, row in self._fastest.items()}

    @cached_property
    def reported(self) -> Times:
        """Reported times: other repeats of the same measurements as `choosing`."""
        return {
            units: {name: record.median_s for name, (_, _, record) in row.items()}
            for units, row in self._fastest.items()
        }

    @cached_property
    def by_candidate(self) -> dict[str, list[TuningRecord]]:
        found: dict[str, list[TuningRecord]] = {}
        for record in self.records:
            found.setdefault(record.candidate_id, []).append(record)
        return found

    def fastest(self, candidate: str, units: int) -> TuningRecord | None:
        """The fastest measurement of a candidate at a share of `units` units; None without one."""
        found = self._fastest.get(units, {}).get(candidate)
        return None if found is None else found[2]

    def fastest_s(self, units: int) -> float:
        """The reported time of the chosen candidate at a share of `units` units, where there must be one."""
        return min(self._fastest[units].values(), key=lambda found: found[:2])[2].median_s


_NOTHING = MeasuredTimes(())


@dataclass(frozen=True)
class ValidatedRecords:
    """Published and refused finalists of one operator, of every target, device and share."""

    records: tuple[TuningRecord, ...] = ()

    def measured(self, device_key: str, target_key: str, mechanism: str) -> MeasuredTimes:
        """The records that count there; empty without any."""
        return self._by_place.get((device_key, target_key, mechanism), _NOTHING)

    def of_job(self, job: str) -> ValidatedRecords:
        """The records that were measured for this job."""
        return ValidatedRecords(tuple(record for record in self.records if record.job == job))

    @cached_property
    def exact(self) -> ValidatedRecords:
        """The records without candidates that round otherwise than the operator itself."""
        return ValidatedRecords(tuple(record for record in self.records if is_exact(record.trace)))

    @cached_property
    def published(self) -> tuple[TuningRecord, ...]:
        """Validations with right output and a positive, finite time."""
        return tuple(
            r for r in self.records if r.kind is Kind.VALIDATION and r.status is Status.OK and 0 < r.median_s < math.inf
        )

    @cached_property
    def _by_place(self) -> dict[tuple[str, str, str], MeasuredTimes]:
        found: dict[tuple[str, str, str], list[TuningRecord]] = {}
        for record in self.published:
            place = (record.device.key, record.target_key, record.granted.mechanism)
            found.setdefault(place, []).append(record)
        return {place: MeasuredTimes(tuple(records)) for place, records in found.items()}


def choosing_order(record: TuningRecord) -> tuple[float, str]:
    """Orders measurements: the fastest first, by the repeats that choose."""
    return record.choosing_s, record.record_id
