"""`fractune.diff`: two jobs or two bundles, by share and operator."""

import contextlib
import math
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fractune.server.job_status import JobStatus, job_status
from fractune.server.rpc import RECONNECT_S, RpcClient, job_name
from fractune.sessions.session import PathText, session
from fractune.text.rendering import Column, Table
from fractune.text.text import marked_time, ratio_text
from fractune_core.analysis.validated import choosing_order
from fractune_core.errors import BadBundle, BadRequest, one_line
from fractune_core.files.buckets import input_shapes, shape_text
from fractune_core.files.bundles import SUFFIX, Bundle
from fractune_core.files.manifests import disturbed_shares
from fractune_core.files.staged import Stages
from fractune_core.names import Collection
from fractune_core.records import Kind, Status, TuningRecord

_DIGITS = 12
"""of a model's hash, in texts"""


@dataclass(frozen=True)
class Side:
    """A job or a bundle with its times in seconds, by share."""

    name: str
    model_s: Mapping[str, Mapping[str, float]]
    """of the whole model, by the shapes of its inputs; of each part, for a model in parts"""
    operators_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """of one call of each operator, by workload hash"""
    names: Mapping[str, str] = field(default_factory=dict)
    """of the operators, by workload hash"""
    model_name: str = ""
    model: str = ""
    """SHA-256 of the model's file"""
    places: Mapping[str, str] = field(default_factory=dict)
    """the shapes or the part of an operator that not all of them have, by workload hash"""
    in_parts: bool = False
    disturbed: Mapping[str, Container[str]] = field(default_factory=dict)
    """shares at which other programs disturbed the times of the whole model, by the shapes of its inputs"""

    @property
    def is_divided(self) -> bool:
        """Whether it has several shapes or parts."""
        return self.in_parts or len(self.model_s) > 1

    @property
    def model_text(self) -> str:
        return f"{one_line(self.name)} is of {one_line(self.model_name)} (SHA-256 {self.model[:_DIGITS]})"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "model": self.model, "model_name": self.model_name}


def job_side(job: JobStatus) -> Side:
    """The whole model once it was timed, and each operator's best so far."""
    shape = shape_text({name: given for name, given in sorted(job.spec.inputs.items()) if given})
    return Side(
        f"{job.name} ({job.model_name})",
        {shape: {each.share: each.tuned_s for each in job.results if each.tuned_s > 0}},
        {each.workload_hash: dict(each.best_s) for each in job.operators},
        {each.workload_hash: each.name for each in job.operators},
        job.model_name,
        Collection.MODELS.parse(job.model) if job.model else "",
        disturbed={shape: {each.share for each in job.results if each.is_disturbed}},
    )


def bundle_side(path: Path, name: str) -> Side:
    """The manifest's times, and the records that it carries. Raises BadBundle."""
    with contextlib.closing(Bundle(path)) as bundle:
        records = _records(bundle)
        manifest = bundle.written
        members = [member.manifest for member in bundle.members] or [manifest]
    operators: dict[str, dict[str, float]] = {}
    for each in sorted(records, key=choosing_order):
        if each.kind is Kind.VALIDATION and each.status is Status.OK:
            operators.setdefault(each.workload_hash, {}).setdefault(each.share, each.median_s)
    places = _places(manifest, members)
    return Side(
        name,
        {place: _timed(member) for place, member in zip(places, members, strict=True)},
        operators,
        {each.workload_hash: each.operator for each in records},
        manifest["model"]["name"],
        manifest["model"]["sha256"],
        _operators_places(path, places, members),
        "stages" in manifest,
        {place: disturbed_shares(member) for place, member in zip(places, members, strict=True)},
    )


def _records(bundle: Bundle) -> list[TuningRecord]:
    try:
        return [TuningRecord.from_json(each) for each in bundle.records()]
    except ValueError as error:
        raise BadBundle(f"{bundle.name}: it has a record that this version cannot read; upgrade fractune") from error


def _places(manifest: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> list[str]:
    """The part or the shapes of each member. Parts are counted as `fractune tune` counts them."""
    if "stages" in manifest:
        steps = Stages.from_json(manifest["stages"]).steps
        return [f"part {number}" for number, step in enumerate(steps, 1) if step.member is not None]
    return [shape_text(dict(sorted(input_shapes(member).items()))) for member in members]


def _timed(member: Mapping[str, Any]) -> dict[str, float]:
    return {share: secs for share, secs in member.get("timed", {}).items() if secs > 0}


def _operators_places(path: Path, places: Sequence[str], members: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By workload hash, but for operators that all members have. Raises BadBundle for a manifest that was changed."""
    found: dict[str, list[str]] = {}
    try:
        for place, member in zip(places, members, strict=True):
            for each in member.get("operators", ()):
                found.setdefault(str(each["workload_hash"]), []).append(place)
    except (KeyError, TypeError) as error:
        raise BadBundle(f"{path.name}: 'operators' is not a list of operators; make the bundle again") from error
    return {workload: "; ".join(held) for workload, held in found.items() if len(held) < len(members)}


MODEL = "the model"


@dataclass(frozen=True)
class Change:
    """One time on both sides; None where a side has none."""

    what: str
    """an operator's name, or `the model`"""
    workload_hash: str
    """empty for the model"""
    place: str
    """the shapes or the part, if a side has several and not all are meant; else empty"""
    share: str
    before_s: float | None
    after_s: float | None
    before_disturbed: bool = False
    """whether other programs made it too long"""
    after_disturbed: bool = False

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
    def is_divided(self) -> bool:
        """Whether times have a place: a side has several shapes or parts."""
        return self.before.is_divided or self.after.is_divided

    @property
    def changes(self) -> list[Change]:
        """Of the model at each share, then of the operators: those that changed most come first."""
        return [*self._model(), *sorted(self._operators(), key=_by_change)]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the times has to know of the two sides."""
        return tuple(self._notes())

    @property
    def table(self) -> Table:
        columns = (
            *(Column("what", wraps_at=32), Column("shape or part", wraps_at=24), Column("share")),
            *(Column(name, numbers=True) for name in ("before", "after", "speed-up")),
        )
        changes = self.changes
        cells: list[tuple[str, ...]] = [
            (
                one_line(each.what),
                one_line(each.place) or ("all" if each.workload_hash else "-"),
                each.share,
                marked_time(each.before_s, at_most=each.before_disturbed),
                marked_time(each.after_s, at_most=each.after_disturbed),
                _ratio(each),
            )
            for each in changes
        ]
        if not self.is_divided:
            columns, cells = (*columns[:1], *columns[2:]), [(*row[:1], *row[2:]) for row in cells]
        title = f"{one_line(self.before.name)} -> {one_line(self.after.name)}"
        return Table(columns, tuple(cells), tuple(each.to_json() for each in changes), title, self.notes)

    def _model(self) -> Iterator[Change]:
        sides, busy = [self.before.model_s, self.after.model_s], [self.before.disturbed, self.after.disturbed]
        if not self.is_divided:
            sides, busy = [{"": _only(each)} for each in sides], [{"": _only(each)} for each in busy]
        for place in dict.fromkeys(place for held in sides for place in held):
            before, after = (held.get(place, {}) for held in sides)
            for share in dict.fromkeys([*before, *after]):
                disturbed = (share in (held.get(place) or ()) for held in busy)
                yield Change(MODEL, "", place, share, before.get(share), after.get(share), *disturbed)

    def _operators(self) -> Iterator[Change]:
        names = {**self.before.names, **self.after.names}
        places = {**self.before.places, **self.after.places}
        for workload, name in names.items():
            before, after = (side.operators_s.get(workload, {}) for side in (self.before, self.after))
            for share in dict.fromkeys([*before, *after]):
                yield Change(name, workload, places.get(workload, ""), share, before.get(share), after.get(share))

    def _notes(self) -> Iterator[str]:
        sides = (self.before, self.after)
        if self.before.model != self.after.model:
            yield f"note: the models differ: {', and '.join(side.model_text for side in sides)}"
        if any(each.before_disturbed or each.after_disturbed for each in self._model()):
            yield "note: <= marks times that other programs made too long; time them again on a quieter machine"
        shapes = [next(iter(side.model_s), "") for side in sides]
        if not self.is_divided and all(shapes) and shapes[0] != shapes[1]:
            yield f"note: the shapes differ: {shapes[0]} before, and {shapes[1]} after"
        for name in dict.fromkeys(one_line(side.name) for side in sides if side.in_parts):
            yield f"note: {name} is of a model in parts; its times are those of each part, not of the whole model"
        for name in dict.fromkeys(one_line(side.name) for side in sides if not any(side.model_s.values())):
            yield f"note: {name} has no time of the whole model yet"


def _only(by_place: Mapping[str, Any]) -> Any:
    """That of a model with one shape."""
    return next(iter(by_place.values()), {})


_BOUNDS = {(True, False): "<= ", (False, True): ">= ", (True, True): "~"}
"""of a speed-up, by which times are too long"""


def _ratio(each: Change) -> str:
    if each.speed_up is None:
        return "-"
    return _BOUNDS.get((each.before_disturbed, each.after_disturbed), "") + ratio_text(each.before_s, each.after_s)


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

    The times are those that each side has: of different days and machines, if it was tuned so. `notes` say if the sides
    are of different models or shapes. Raises BadBundle, NotFound, ServerUnreachable, BadRequest for two sides without a
    share in common.
    """
    names = _names_apart(Path(before), Path(after))
    sides: list[Side | str] = [
        bundle_side(Path(each), name) if Path(each).is_file() or Path(each).suffix == SUFFIX else str(each)
        for each, name in zip((before, after), names, strict=True)
    ]
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
            f"no time is on both sides: {before.model_text}, and {after.model_text}; "
            "compare two of one model and shape, with a share in common"
        )
    return found


def _names_apart(before: Path, after: Path) -> tuple[str, str]:
    """The names of two files, each with as many folders as tell them apart."""
    most = max(len(before.parts), len(after.parts))
    pairs = (tuple(str(Path(*path.parts[-count:])) for path in (before, after)) for count in range(1, most + 1))
    first, second = next((pair for pair in pairs if pair[0] != pair[1]), (before.name, after.name))
    return first, second


def _connect(reconnect_s: float) -> Any:
    def connect(address: str, **options: Any) -> RpcClient:
        return RpcClient(address, **{"reconnect_s": reconnect_s, **options})

    return connect


def _job(client: RpcClient, name: str) -> JobStatus:
    return job_status(client.get_job(job_name(name)))
