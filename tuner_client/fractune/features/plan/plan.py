"""Plans: the placement of models on parts of devices, from bundles, stated times, or a log."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from fractune.features.plan.plan_file import LogModel, PlanFile, read_plan
from fractune.features.plan.slowdowns import MOST_PAIRS, MeasuredSlowdown, counted, slowdowns_table, with_slowdowns
from fractune.features.plan.table import models_table, parts_table, plan_json, summary
from fractune.models.source import check_model_file, model_file
from fractune.server.rpc import RECONNECT_S, RpcClient
from fractune.sessions.progress import ProgressOption, choose_view
from fractune.sessions.session import PlaceOptions, finished_job, session
from fractune.text.figure import Drawable
from fractune.text.rendering import Table
from fractune_core.analysis.model_times import MeasuredPair
from fractune_core.codec.messages import from_proto
from fractune_core.errors import BadRequest, one_line
from fractune_core.jobs import JobSpec
from fractune_core.planning.devices import Partitioning
from fractune_core.planning.planner import make_plan
from fractune_core.planning.plans import Plan
from fractune_core.planning.speeds import Basis
from fractune_core.planning.wire import LoggedModel, request_to_proto

PlanSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
_ROUNDS = 4
"""rounds of planning and measuring: each measurement can change the plan, and so the next shares to measure"""


@dataclass(frozen=True)
class PlanResult(Drawable):
    """A plan, for a person to confirm: nothing was changed anywhere."""

    plan: Plan
    measured: tuple[MeasuredSlowdown, ...] = ()
    """slow-downs of pairs in the log, which the plan counts on"""

    def __repr__(self) -> str:
        models = ", ".join(one_line(model.name) for model in self.plan.models)
        return f"PlanResult({models}: {summary(self.plan)[0]})"

    @property
    def table(self) -> Table:
        """A row for each part of each device."""
        return parts_table(self.plan)

    @property
    def models(self) -> Table:
        """A row for each model: its demand and its supply."""
        return models_table(self.plan)

    @property
    def slowdowns(self) -> Table:
        """A row for each model beside another one, by the log's pairs."""
        return slowdowns_table(self.measured)

    def to_json(self) -> dict[str, Any]:
        """As `fractune plan --json` prints it."""
        return {**plan_json(self.plan), "slowdowns": [each.to_json() for each in self.measured]}

    def _draw(self, path: Path) -> None:
        """Draw the devices and their parts."""
        from fractune.features.plan.table import draw_plan

        draw_plan(self.plan, path)


def plan(
    source: PlanSource,
    *,
    gpus: int | None = None,
    partitioning: str = "",
    simulate: bool = False,
    seed: int = 0,
    measure: bool = False,
    server: str | None = None,
    state: str | os.PathLike[str] | None = None,
    progress: ProgressOption = True,
    reconnect_s: float = RECONNECT_S,
) -> PlanResult:
    """Plan the models of a plan file (or of a mapping with its content) onto devices; docs/sharing.md describes it.

    Models with rates get the fewest devices, then the fewest units of them, and at most `gpus` devices. Without rates
    one device is divided for the most throughput. `partitioning` is `mig`, `mps`, `green`, `cpu` or `limit`, and
    overrides the file. With `simulate` requests arrive at random in a simulation with the seed `seed`, and the plan
    has the headroom that p99 needs. Times come from bundles and profiles. Times of the file's `model` entries come from
    the log of `server`, or of the one-machine stack in `state`. Pairs of these models that `fractune pair` recorded in
    a named log say how much they slow each other down. With `measure` the shares that the plan depends on are timed
    there first, without a search. An unreachable server is awaited for `reconnect_s`.

    Raises BadRequest, BadBundle, FractuneError without the solver, and the errors of `tune` if a log is used.
    PlanInfeasible names the limiting model and a remedy.
    """
    read = read_plan(source, gpus=gpus, partitioning=partitioning)

    def planned() -> PlanResult:
        with session(RpcClient, state, server, compile=bool(read.logged)) as client:
            return plan_by_server(client, read, simulate=simulate, seed=seed)

    def time(model: LogModel, shares: list[str]) -> None:
        """Run a job that searches nothing and measures the log's best at these shares."""
        spec = JobSpec.requested(model.path.name, shares, inputs=model.inputs, rerank=1)
        with finished_job(model.path, spec, PlaceOptions(server, state, reconnect_s), choose_view(progress)):
            pass

    if measure:
        _check_can_measure(read)
        return _measured_plan(read, planned, time)
    if not read.logged and server is None and state is None:
        return PlanResult(make_plan(read.request, simulated=simulate, seed=seed))
    return planned()


def plan_by_server(client: RpcClient, read: PlanFile, *, simulate: bool, seed: int) -> PlanResult:
    """A plan by the server, with its log's data on the file's `model` entries, and on pairs of all models."""
    logged = {}
    for name, each in read.logged.items():
        with model_file(each.path) as path:
            model = client.upload_model(path).name
        logged[name] = LoggedModel(model, each.inputs, each.requests_per_run)
    pairs = [from_proto(MeasuredPair, each) for each in client.pairs("", MOST_PAIRS)]
    asked, measured = with_slowdowns(read.request, read.paired_as, pairs)
    if asked.device.partitioning is Partitioning.LIMIT:  # by predictions, which are the client's
        return paired_plan(make_plan(asked, simulated=simulate, seed=seed), measured)
    request = request_to_proto(asked, logged, simulate=simulate, seed=seed)
    return paired_plan(from_proto(Plan, client.make_plan(request)), measured)


def paired_plan(plan: Plan, measured: tuple[MeasuredSlowdown, ...]) -> PlanResult:
    """The plan, with the pairs that it counts on, and a note on them."""
    measured = counted(plan, measured)
    if not measured:
        return PlanResult(plan)
    count = f"{len(measured)} slow-down{'s' * (len(measured) > 1)}"
    note = f"{count} by co-runners from measured pairs in the log; a pair at other shares than the plan's may differ"
    return PlanResult(replace(plan, notes=(*plan.notes, note)), measured)


def _measured_plan(read: PlanFile, planned: Callable[[], PlanResult], time: Callable[..., None]) -> PlanResult:
    """Time the ends and the middle of each model's curve. Then time the parts that the plan takes without a measured
    time of the whole model, until no such part can be timed.
    """
    done: set[tuple[str, str]] = set()
    needed = {(name, share) for name in read.logged for share in _ends_and_middle(read)}
    for _ in range(_ROUNDS):
        for name, model in read.logged.items():
            shares = [share for of, share in sorted(needed - done) if of == name]
            if shares:
                time(model, shares)
        done |= needed
        result = planned()
        parts = [part for parts in result.plan.devices for part in parts]
        needed = {
            (part.model, part.share)
            for part in parts
            if part.model in read.logged and part.basis in (Basis.PREDICTED, Basis.OPERATORS, Basis.DISTURBED)
        }
        if not needed - done:
            break
    return result


def _ends_and_middle(read: PlanFile) -> list[str]:
    """Shares for a curve: the smallest, one between, and the whole device."""
    parts = read.request.device.parts
    return list(dict.fromkeys(part.share for part in (parts[0], parts[(len(parts) - 1) // 2], parts[-1])))


def _check_can_measure(read: PlanFile) -> None:
    if not read.logged:
        raise BadRequest("--measure: no model of the plan can be timed; give one as model = 'FILE.onnx'")
    for model in read.logged.values():
        check_model_file(model.path)
