"""The slow-downs of a plan's models beside each other, as far as a log has their pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fractune.text.rendering import Column, Table
from fractune.text.text import moment_text, slowdown_text
from fractune_core.analysis.model_times import OWN_UNITS, MeasuredPair, PairedModel
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import one_line
from fractune_core.planning.devices import DeviceType
from fractune_core.planning.plans import Plan, PlannedPart, PlanRequest
from fractune_core.served import is_disturbed

MOST_PAIRS = 1000
"""the newest pairs of a log that a plan reads"""


@dataclass(frozen=True)
class MeasuredSlowdown:
    """The time of a plan's model beside another one, over its time alone, each on units of its own."""

    model: str
    """in the plan"""
    beside: str
    i: Estimate
    shares: tuple[str, str]
    """at which both were measured"""
    host: str
    measured_at: float
    """seconds since 1970"""
    pair_id: str

    @property
    def factor(self) -> float:
        """What the plan multiplies times by: a co-runner makes nothing faster."""
        return max(1.0, self.i.median)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shares": list(self.shares), "factor": self.factor}


def with_slowdowns(
    request: PlanRequest, names: Mapping[str, str], pairs: Sequence[MeasuredPair]
) -> tuple[PlanRequest, tuple[MeasuredSlowdown, ...]]:
    """The request with what the pairs say of its models, and the slow-downs that were taken. The request's own
    `interference` goes before. `names` has the models' names in pairs; `pairs` are the newest first.
    """
    known = _known(pairs, request.device)
    taken = tuple(
        MeasuredSlowdown(model.name, other.name, *found)
        for model in request.models
        for other in request.models
        if (request.is_fleet or model is not other) and (model.name, other.name) not in request.interference
        if (found := known.get((names[model.name], names[other.name]))) is not None
    )
    measured = {(each.model, each.beside): each.factor for each in taken}
    return replace(request, interference={**request.interference, **measured}), taken


def counted(plan: Plan, slowdowns: Sequence[MeasuredSlowdown]) -> tuple[MeasuredSlowdown, ...]:
    """Those of models that are on one device of the plan, and those that the times of a part are multiplied by."""
    return tuple(each for each in slowdowns if any(_counts(each, parts) for parts in plan.devices))


def _counts(each: MeasuredSlowdown, parts: Sequence[PlannedPart]) -> bool:
    names = [part.model for part in parts]
    if each.model not in names:
        return False
    names.remove(each.model)
    return each.beside in names or any(
        part.model == each.model and part.slowdown == each.factor > 1.0 for part in parts
    )


def slowdowns_table(slowdowns: Sequence[MeasuredSlowdown]) -> Table:
    """A row for each model beside another one."""
    return Table(
        title="slow-downs of measured pairs",
        columns=(
            *(Column("model", wraps_at=20), Column("beside", wraps_at=20), Column("slow-down", numbers=True)),
            *(Column("share"), Column("its share"), Column("host", dispensable=1), Column("measured", dispensable=2)),
        ),
        cells=tuple(
            (
                *(one_line(each.model), one_line(each.beside), slowdown_text(each.i), *each.shares),
                *(one_line(each.host), moment_text(each.measured_at)),
            )
            for each in slowdowns
        ),
        rows=tuple(each.to_json() for each in slowdowns),
    )


_Found = tuple[Estimate, tuple[str, str], str, float, str]


def _known(pairs: Sequence[MeasuredPair], device: DeviceType) -> dict[tuple[str, str], _Found]:
    """The newest of two models, by their names. Parts of a plan never overlap, so only models on units of their own
    count, and only shares of the plan's own kind. Pairs that other programs disturbed do not count.
    """
    found: dict[tuple[str, str], _Found] = {}
    for pair in pairs:
        if (
            is_disturbed(pair.others_cores)
            or pair.how != OWN_UNITS
            or not all(each.share.partition(":")[0] == device.timed_by.partitioning for each in pair.models)
        ):
            continue
        for i, one, other in _both_ways(pair):
            facts = (one.share, other.share), pair.host, pair.measured_at, pair.pair_id
            found.setdefault((one.model_name, other.model_name), (i, *facts))
    return found


def _both_ways(pair: MeasuredPair) -> list[tuple[Estimate, PairedModel, PairedModel]]:
    """The slower one first, which counts for a model beside itself."""
    ways = [(one.interference, one, other) for one, other in (pair.models, pair.models[::-1])]
    known = [(i, one, other) for i, one, other in ways if i is not None]
    return sorted(known, key=lambda way: -way[0].median)
