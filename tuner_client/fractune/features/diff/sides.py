"""What `fractune diff` compares: the times of a job or of a bundle."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fractune.features.shapes.text import shape_text
from fractune.server.job_status import JobStatus
from fractune_core.analysis.validated import choosing_order
from fractune_core.errors import BadBundle, one_line
from fractune_core.files.buckets import input_shapes
from fractune_core.files.bundles import Bundle
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
