"""`fractune.retune`: what was tuned once, tuned again for other shares, new hardware or a new TVM."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fractune.server.job_status import JobStatus, job_status
from fractune.server.rpc import RECONNECT_S, RpcClient
from fractune.sessions.progress import ProgressOption, choose_view
from fractune.sessions.session import PathText, PlaceOptions, rerun_job, tuning_session
from fractune.text.rendering import Column, Table
from fractune.text.text import disturbed_notes, marked_time, ratio_text, untuned_notes
from fractune_core.errors import BadRequest, FractuneError, ServerUnreachable, one_line
from fractune_core.files.buckets import shape_text
from fractune_core.jobs import JobSpec, JobState
from fractune_core.pb import fractune_pb2 as pb

DEFAULT_LIMIT = 1000


@dataclass(frozen=True)
class Known:
    """A model with inputs and options for which jobs were done."""

    latest: JobStatus
    """the newest of them"""
    jobs: int
    """how many there are"""


@dataclass(frozen=True)
class Retuned:
    """A known model, and what became of it."""

    known: Known
    job: JobStatus | None = None
    """the new job at its end; None if it was not asked for, or failed"""
    error: str = ""
    """why it failed"""


@dataclass(frozen=True)
class RetuneResult:
    """The known models in their order: those with the most jobs first, then the newest."""

    models: tuple[Retuned, ...]

    @property
    def skipped_shares(self) -> Mapping[str, str]:
        """Shares that could not be verified, each with the cause."""
        return {
            share: cause for each in self.models if each.job for share, cause in each.job.spec.skipped_shares.items()
        }

    @property
    def table(self) -> Table:
        """A row for each model and share; a row for each model that was not tuned."""
        columns = (
            *(Column("model", wraps_at=32), Column("jobs before", numbers=True), Column("job"), Column("share")),
            *(Column(name, numbers=True) for name in ("untuned", "tuned", "gain")),
        )
        pairs = [pair for each in self.models for pair in _rows(each)]
        results = [each for model in self.models if model.job for each in model.job.results]
        notes = (*untuned_notes(results), *disturbed_notes(results))
        return Table(columns, tuple(cells for cells, _ in pairs), tuple(row for _, row in pairs), notes=notes)


def retune(
    shares: str | Sequence[str],
    *,
    trials: int | None = None,
    minutes: float | None = None,
    models: str = "",
    device: str = "",
    tvm: str = "",
    priority: str = "low",
    limit: int = DEFAULT_LIMIT,
    dry_run: bool = False,
    server: str | None = None,
    state: PathText | None = None,
    progress: ProgressOption = True,
    reconnect_s: float = RECONNECT_S,
) -> RetuneResult:
    """Tune each model that was tuned before for `shares`, one after the other: those with the most jobs come first.

    The models are those of the newest `limit` jobs that are done, with the inputs, options and namespace of these jobs.
    The server has their files. `models` is part of their names. `device` is part of a device key: only models
    with operators that were measured on such a device are tuned. `tvm` is a version, `0.26` or `0.26.1`: only models
    whose newest measurement is by this TVM are tuned. `trials` and `minutes` are for each model, as for
    `tune`. A model that fails is reported, and does not end the others. With `dry_run` nothing is tuned. The bundles
    stay on the server: `Client.job(name).bundle()`. The other options are those of `tune`.

    Raises BadRequest, ShareUnavailable, ServerUnreachable, StateUnusable.
    """
    checked = JobSpec.requested("", shares, trials=trials, minutes=minutes, priority=priority)
    done: list[Retuned] = []
    view = choose_view(progress)
    with tuning_session(PlaceOptions(server, state, reconnect_s), checked.shares) as place, view:
        newest = list(map(job_status, place.client.jobs(limit=limit)))
        named = known_models(newest, models)
        if not named:
            called = f" called {models}" if models else ""
            among = f" in its newest {limit} jobs; raise --limit, or" if len(newest) >= limit else ";"
            raise BadRequest(f"{place.client.address} knows no model{called} that was tuned{among} tune one first")
        known = [each for each in named if _is_measured(place.client, each.latest, device, tvm)]
        if not known:
            where = f"{f' on {device}' if device else ''}{f' by TVM {tvm}' if tvm else ''}"
            raise BadRequest(
                f"none of the {len(named)} known models was measured{where}; 'fractune log show --json' has the "
                "devices and versions of records"
            )
        if dry_run:
            return RetuneResult(tuple(map(Retuned, known)))
        for number, each in enumerate(known, 1):
            view.show_step(f"model {number} of {len(known)}: {one_line(each.latest.model_name)}")
            try:
                done.append(Retuned(each, rerun_job(place, spec_of(each.latest, checked), view)))
            except ServerUnreachable:
                raise
            except FractuneError as error:
                done.append(Retuned(each, error=str(error)))
    return RetuneResult(tuple(done))


def known_models(jobs: Sequence[JobStatus], name: str = "") -> list[Known]:
    """The models of the jobs that are done, the newest job first; `name` is part of the model's."""
    found: defaultdict[Hashable, list[JobStatus]] = defaultdict(list)
    for each in jobs:
        if each.state is JobState.DONE and name.lower() in each.model_name.lower():
            inputs = tuple((given, *shape) for given, shape in sorted(each.spec.inputs.items()))
            spec = each.spec
            found[spec.model, inputs, spec.target, spec.only, spec.exact, spec.namespace].append(each)
    known = (Known(max(same, key=lambda job: job.created_at), len(same)) for same in found.values())
    return sorted(known, key=lambda each: (-each.jobs, -each.latest.created_at))


def _is_measured(client: RpcClient, latest: JobStatus, device: str, tvm: str) -> bool:
    """Whether the log has the model's operators from the device, the newest of them by this version of TVM."""
    if not device and not tvm:
        return True
    only = pb.RecordFilter(model=latest.model, device=device, namespace=latest.spec.namespace)
    newest = client.records(only, limit=1).records
    return any(f"{each.versions.get('tvm', '')}.".startswith(f"{tvm}." if tvm else "") for each in newest)


def spec_of(latest: JobStatus, asked: JobSpec) -> JobSpec:
    """The job that tunes the model of `latest` for the shares and the budget of `asked`."""
    old = latest.spec
    return replace(
        asked,
        model=old.model,
        model_name=old.model_name,
        inputs=old.inputs,
        target=old.target,
        only=old.only,
        exact=old.exact,
        namespace=old.namespace,
    )


def _rows(each: Retuned) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    latest = each.known.latest
    shapes = shape_text({name: shape for name, shape in latest.spec.inputs.items() if shape})
    name, jobs = one_line(f"{latest.model_name} ({shapes})" if shapes else latest.model_name), str(each.known.jobs)
    row: dict[str, Any] = {
        "model": latest.model,
        "model_name": latest.model_name,
        "inputs": dict(latest.spec.inputs),
        "jobs_before": each.known.jobs,
    }
    if each.job is None:
        return [((name, jobs, one_line(each.error) or "-", *4 * "-"), {**row, "job": None, "error": each.error})]
    return [
        (
            (
                name,
                jobs,
                each.job.name,
                at.share,
                marked_time(at.untuned_s, at_most=at.is_untuned_at_most),
                marked_time(at.tuned_s, at_most=at.is_disturbed),
                ratio_text(at.untuned_s, at.tuned_s),
            ),
            {
                **row,
                "job": each.job.name,
                "share": at.share,
                "untuned_s": at.untuned_s,
                "tuned_s": at.tuned_s,
                "disturbed": at.is_disturbed,
            },
        )
        for at in each.job.results
    ]
