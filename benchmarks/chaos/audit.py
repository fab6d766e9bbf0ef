"""The audit files of the measurers, compared with the log: nothing lost, doubled or invented."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fractune_core.records import Kind, TuningRecord
from fractune_workers.measuring.audit import DELIVERED, Statement


@dataclass
class Audit:
    """The statements of a fleet's audit files together."""

    statements: defaultdict[str, list[Statement]] = field(default_factory=lambda: defaultdict(list))
    """by record id: several when a measurer died before it had sent what another then measured again"""
    delivered: set[str] = field(default_factory=set)
    """record ids"""
    torn: int = 0
    """lines that were cut short"""

    def read(self, lines: Iterable[str]) -> None:
        """Take in the lines of one file."""
        for line in lines:
            try:
                self._take(json.loads(line))
            except (KeyError, TypeError, ValueError):
                self.torn += 1

    def _take(self, event: Mapping[str, Any]) -> None:
        if event["event"] == DELIVERED:
            self.delivered.update(event["record_ids"])
            return
        fields = {name: event[name] for name in Statement.__dataclass_fields__}
        statement = Statement(**{**fields, "run_secs": tuple(fields["run_secs"])})
        self.statements[statement.record_id].append(statement)


@dataclass(frozen=True)
class AuditFindings:
    """A log compared with an audit. Lost, doubled and invented records are named by record id."""

    said: int
    """measurements that measurers reported, each counted once"""
    recorded: int
    """records in the log"""
    lost: tuple[str, ...]
    """sent, and not in the log"""
    doubled: tuple[str, ...]
    """trials of a candidate that the log has at the same share already: paid for twice"""
    invented: tuple[str, ...]
    """in the log, and not reported by any measurer with these values"""
    given_up: tuple[str, ...]
    """written by the server, for work that had ended several workers"""
    measured_again: int
    """reported more than once: the first measurer died before its result was accepted"""
    unsent: int
    """reported, never sent, and not in the log: the measurer died in between, and the result was not needed any more"""

    @property
    def faultless(self) -> bool:
        return not (self.lost or self.doubled or self.invented)


def check_audit(audit: Audit, records: Iterable[TuningRecord]) -> AuditFindings:
    """Compare `audit` with all records of a log; all its measurers must keep audit files.

    Doubled counts trials within a namespace: a validation may measure a candidate again, that is its trade. A job that
    shares with no other (`fresh`) pays for its own trials, so a log with such jobs counts those as doubled.
    """
    found = list(records)
    ids = {record.record_id for record in found}
    by_server = tuple(record.record_id for record in found if not record.worker)
    by_measurers = [record for record in found if record.worker]
    return AuditFindings(
        said=len(audit.statements),
        recorded=len(found),
        lost=tuple(sorted(audit.delivered - ids)),
        doubled=tuple(_doubled(found)),
        invented=tuple(record.record_id for record in by_measurers if not _is_told(audit, record)),
        given_up=by_server,
        measured_again=sum(len(statements) > 1 for statements in audit.statements.values()),
        unsent=len(audit.statements.keys() - audit.delivered - ids),
    )


def _is_told(audit: Audit, record: TuningRecord) -> bool:
    return any(statement.fits(record) for statement in audit.statements.get(record.record_id, ()))


def _doubled(records: Iterable[TuningRecord]) -> Iterable[str]:
    seen = Counter[tuple[str, str, str]]()
    for record in records:
        if record.kind is Kind.TRIAL:
            place = (record.namespace, record.candidate_id, record.granted.key)
            seen[place] += 1
            if seen[place] > 1:
                yield record.record_id
