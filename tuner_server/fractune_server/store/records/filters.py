"""Filters of the tuning log's records, and their SQL."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, or_, select

from fractune_core.records import Kind
from fractune_server.store.database.tables import job_operators, jobs, records


@dataclass(frozen=True)
class RecordFilter:
    """Empty fields match everything, except the namespace."""

    model: str = ""
    """SHA-256 of a model, or part of a model's file name; case is ignored, as in all parts of names"""
    operator: str = ""
    """part of an operator's name, or a workload hash"""
    share: str = ""
    device: str = ""
    """part of a device key"""
    kind: Kind | None = None
    job: str = ""
    namespace: str = ""

    def clauses(self) -> list[ColumnElement[bool]]:
        columns = records.c
        found_by_others = self.model or self.share or self.job
        found: list[ColumnElement[bool]] = [
            within(self.namespace) if found_by_others else columns.namespace == self.namespace,
        ]
        if self.model:
            found.append(columns.workload_hash.in_(self._workloads_of_model()))
        if self.operator:
            named = columns.operator.icontains(self.operator, autoescape=True)
            found.append(or_(columns.workload_hash == self.operator, named))
        if self.share:
            found.append(columns.share == self.share)
        if self.device:
            found.append(columns.device_key.icontains(self.device, autoescape=True))
        if self.kind is not None:
            found.append(columns.kind == self.kind.value)
        if self.job:
            found.append(columns.job == self.job)
        return found

    def _workloads_of_model(self) -> ColumnElement[str]:
        named = jobs.c.model_name.icontains(self.model, autoescape=True)
        chosen = select(jobs.c.id).where(or_(jobs.c.model == self.model, named))
        return select(job_operators.c.workload_hash).where(job_operators.c.job.in_(chosen)).scalar_subquery()


def within(namespace: str) -> ColumnElement[bool]:
    """Whether a record is of the namespace, if another index is more selective.

    The expression hides the column: otherwise SQLite would choose an index that begins with the namespace, and read all
    of it.
    """
    return records.c.namespace.concat("") == namespace
