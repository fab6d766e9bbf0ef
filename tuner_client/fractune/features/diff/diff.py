"""`fractune.diff`: two jobs or two bundles, by share and operator."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fractune.server.job_status import JobStatus, job_status
from fractune.server.rpc import RECONNECT_S, RpcClient, job_name
from fractune.sessions.finding import PathText
from fractune.sessions.session import session
from fractune.text.rendering import Column, Table
from fractune.text.text import ratio_text, time_text
from fractune_core.analysis.validated import choosing_order
from fractune_core.errors import BadBundle, BadRequest, one_line
from fractune_core.files.bundles import Bundle
from fractune_core.records import Kind, Status, TuningRecord

MODEL = "the model"


@dataclass(frozen=True)
class Side:
    """A job or a bundle with its times in seconds, by share."""

    name: str
    model_s: Mapping[str, float]
    """of the whole model"""
    operators_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """of one call of each operator, by workload hash"""
    names: Mapping[str, str] = field(default_factory=dict)
    """of the operators, by workload hash"""


@dataclass(frozen=True)
class Change:
    """One time on both sides; None where a side has none."""

    what: str
    """an operator's name, or `the model`"""
    workload_hash: str
    """empty for the model"""
    share: str
    before_s: float | None
    after_s: float | None

    @property
    def speed_up(self) -> float | None:
        """Before over after: 2.0 = twice as fast. None without both, and for a time of zero."""
        if not self.before_s or not self.after_s:
            return None
        return self.before_s / self.after_s

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "speed_up": self.speed_up}


@dataclass(frozen=True)
class Diff:
    """Two sides; the model comes first, then the operators with the largest change."""

    before: Side
    after: Side

    @property
    def changes(self) -> list[Change]:
        """Of the model at each share, then of the operators: those that changed most come first."""
        shares = dict.fromkeys([*self.before.model_s, *self.after.model_s])
        model = [
            Change(MODEL, "", share, self.before.model_s.get(share), self.after.model_s.get(share)) for share in shares
        ]
        return [*model, *sorted(self._operators(), key=_by_change)]

    def _operators(self) -> Iterator[Change]:
        names = {**self.before.names, **self.after.names}
        for workload, name in names.items():
            before, after = (side.operators_s.get(workload, {}) for side in (self.before, self.after))
            for share in dict.fromkeys([*before, *after]):
                yield Change(name, workload, share, before.get(share), after.get(share))

    @property
    def table(self) -> Table:
        columns = (
            *(Column("what", wraps_at=32), Column("share"), Column("before", numbers=True)),
            *(Column("after", numbers=True), Column("speed-up", numbers=True)),
        )
        cells = tuple(
            (one_line(each.what), each.share, time_text(each.before_s), time_text(each.after_s), _ratio(each))
            for each in self.changes
        )
        title = f"{one_line(self.before.name)} -> {one_line(self.after.name)}"
        notes = () if self.before.model_s and self.after.model_s else ("a side has no time of the whole model yet",)
        return Table(columns, cells, tuple(each.to_json() for each in self.changes), title, notes)


def _ratio(each: Change) -> str:
    return "-" if each.speed_up is None else ratio_text(each.before_s, each.after_s)


def _by_change(each: Change) -> float:
    return math.inf if each.speed_up is None else -abs(math.log(each.speed_up))


def diff(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    *,
    server: str | None = None,
    state: PathText | None = None,
    reconnect_s: float = RECONNECT_S,
) -> Diff:
    """Compare two jobs or bundles. Each is a bundle's file, or the name of a job on the server (default: as `tune`).

    The times are those that each side has: of different days and machines, if it was tuned so. Raises BadBundle,
    NotFound, ServerUnreachable, BadRequest for two sides without a share in common.
    """
    sides: list[Side | str] = [_bundle_side(Path(each)) if _is_file(each) else str(each) for each in (before, after)]
    if any(isinstance(side, str) for side in sides):
        with session(_connect(reconnect_s), state, server) as client:
            sides = [job_side(_job(client, side)) if isinstance(side, str) else side for side in sides]
    first, second = (side for side in sides if isinstance(side, Side))
    return compared(first, second)


def compared(before: Side, after: Side) -> Diff:
    """Raises BadRequest for two sides that nothing can be said of."""
    found = Diff(before, after)
    if not any(each.before_s is not None and each.after_s is not None for each in found.changes):
        raise BadRequest(
            f"{before.name} and {after.name} have no share and no operator in common; name two of one model"
        )
    return found


def _is_file(given: str | os.PathLike[str]) -> bool:
    return Path(given).is_file() or Path(given).suffix == ".fractune"


def _connect(reconnect_s: float) -> Any:
    def connect(address: str, **options: Any) -> RpcClient:
        return RpcClient(address, **{"reconnect_s": reconnect_s, **options})

    return connect


def _job(client: RpcClient, name: str) -> JobStatus:
    return job_status(client.get_job(job_name(name)))


def job_side(job: JobStatus) -> Side:
    """The whole model once it was timed, and each operator's best so far."""
    return Side(
        f"{job.name} ({job.model_name})",
        {each.share: each.tuned_s for each in job.results if each.tuned_s > 0},
        {each.workload_hash: dict(each.best_s) for each in job.operators},
        {each.workload_hash: each.name for each in job.operators},
    )


def _records(bundle: Bundle) -> list[TuningRecord]:
    try:
        return [TuningRecord.from_json(each) for each in bundle.records()]
    except ValueError as error:
        raise BadBundle(f"{bundle.name}: it has a record that this version cannot read; upgrade fractune") from error


def _bundle_side(path: Path) -> Side:
    """The manifest's times, and the records that it carries."""
    with contextlib.closing(Bundle(path)) as bundle:
        bundle.check_undivided("diff")
        records = _records(bundle)
        model_s = {share: secs for share, secs in bundle.manifest.get("timed", {}).items() if secs > 0}
    operators: dict[str, dict[str, float]] = {}
    for each in sorted(records, key=choosing_order):
        if each.kind is Kind.VALIDATION and each.status is Status.OK:
            operators.setdefault(each.workload_hash, {}).setdefault(each.share, each.median_s)
    return Side(path.name, model_s, operators, {each.workload_hash: each.operator for each in records})
