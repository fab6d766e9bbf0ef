"""Tuning and its tables, on the one-machine stack or on a server: each a job that is followed to its end."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from fractune.features.knee.report import fastest_knee
from fractune.features.matrix.cross_table import model_table
from fractune.features.matrix.matrix import operator_tables
from fractune.features.tune.goal import goal_spec, tune_until_beaten
from fractune.features.tune.result import BundleFile, KneeResult, MatchResult, Matrix, TuneResult
from fractune.models.source import ModelSource, model_file
from fractune.server.rpc import RECONNECT_S
from fractune.sessions.finding import named_server
from fractune.sessions.progress import ProgressOption, choose_view
from fractune.sessions.requests import bundle_file, check_above_zero, job_spec, shapes, tuning_spec
from fractune.sessions.running import finished_job
from fractune.sessions.session import session
from fractune.text.output_files import check_writable
from fractune_core.convert import DEFAULT_ROUND_SIZE, DEFAULT_TRIALS
from fractune_core.errors import BadRequest, JobFailed
from fractune_core.files.fused import is_fused
from fractune_core.names import ROBUST_VARIANT
from fractune_core.shares import Share

PathText: TypeAlias = str | os.PathLike[str]
Shapes = Mapping[str, Sequence[int]]


def tune(
    model: ModelSource,
    shares: str | Sequence[str],
    *,
    trials: int | None = None,
    minutes: float | None = None,
    until_beats: str | None = None,
    by: float | None = None,
    more: int | None = None,
    round_size: int = DEFAULT_ROUND_SIZE,
    seed: int = 0,
    target: str = "",
    rerank: int | None = None,
    only: str = "",
    exact: bool = False,
    scope: str = "",
    fresh: bool = False,
    inputs: Shapes | None = None,
    run_script: bool = False,
    priority: str = "normal",
    webhook: str = "",
    out: PathText = ".",
    server: str | None = None,
    state: PathText | None = None,
    progress: ProgressOption = True,
    reconnect_s: float = RECONNECT_S,
) -> TuneResult:
    """Tune a model for shares of this machine, or of a server's machines, and write its bundle.

    Without `server` (HOST:PORT or unix:PATH; default: FRACTUNE_SERVER) the stack is used that `fractune up` runs in the
    folder `state` (default: FRACTUNE_STATE, else the user's data folder); where none does, one runs meanwhile, with
    everything that it keeps in that folder. Ctrl-C cancels the job and ends that stack; what was measured stays in the
    log.

    `shares` is `["cpu:1", "cpu:2"]` or `"cpu:1,cpu:2"`. `trials` candidates (default: 256) are measured in all, those
    in the log counted in, with 0 none: the bundle is of what the log knows; `more` is beyond the log. The search ends
    after `minutes`. With `until_beats="onnxruntime"` it ends when the bundle is faster than the ONNX model in ONNX
    Runtime at every share of this machine's CPU, `by` more than that part (0.05 = 5 %) and beyond the noise, or after
    `minutes` (default: 15), or at `trials` (default: no limit): `TuneResult.goal`. `round_size` is the most candidates
    of a round. `target` is TVM's, by default the measuring processor. With `rerank` nothing is searched: so many of
    every share's best are measured here. `only` names the operators to tune by parts of their names ("conv2d,dense").
    `exact` leaves out implementations that round otherwise than the operator itself, as Winograd's convolutions do.
    Jobs that run at the same time search an operator once, and read what the log holds of it: those of one `scope`
    (default: the server's), and with `fresh` none but this one. `inputs` gives shapes to inputs that the model
    leaves open. A Python file (TVMScript) is refused, unless with `run_script` its code may run here: then the
    IRModule that it makes is tuned. `priority` is "low", "normal" or "high": beside others a job gets four times
    the measurements of one that is one step lower, and none waits for ever. A server that allows it calls the
    address `webhook` when the job has ended. The bundle is `<model>.fractune` in the folder `out`. `progress` shows
    a bar, nothing (False), or calls a function with each JobStatus. A server that went away is waited for
    `reconnect_s`.

    Raises BadModel, BadRequest, ShareUnavailable, ServerUnreachable, StateUnusable, and what ended the job.
    """
    with model_file(model, run_script=run_script) as path:
        spec = tuning_spec(
            path.name,
            shares,
            inputs or {},
            target=target,
            trials=DEFAULT_TRIALS if trials is None else trials,
            more=more,
            minutes=minutes,
            round_size=round_size,
            only=only,
            seed=seed,
            priority=priority,
            webhook=webhook,
            rerank=rerank,
            exact=exact,
            scope=scope,
            fresh=fresh,
        )
        written = bundle_file(out, path.name)
        check_writable("out", written)
        if until_beats is not None and is_fused(path):
            raise BadRequest(f"{path.name} is a fused model, which no peer runs; leave until_beats out")
        if fresh and until_beats is not None:
            raise BadRequest("fresh: until_beats tunes in steps, of which each reads what those before it measured")
        if webhook and until_beats is not None:
            raise BadRequest("webhook: until_beats tunes in steps, of which each is a job; leave one of them out")
        where = named_server(folder(state), server)
        goal = goal_spec(until_beats, by, spec, minutes=minutes, trials=trials, server=where)
        if goal is not None:
            return tune_until_beaten(path, spec, goal, written, folder(state), choose_view(progress), reconnect_s)
        with finished_job(path, spec, folder(state), server, choose_view(progress), reconnect_s) as (place, job):
            place.client.download_bundle(job.bundle, written)
            # Of a stack of our own, asked while it is still there.
            measurers = place.client.measurers() if place.is_own else {}
    return TuneResult(job, BundleFile(written, job.name), measurers)


def bundle(
    model: ModelSource,
    shares: str | Sequence[str],
    *,
    policy: str = "shares",
    rerank: int = 1,
    target: str = "",
    exact: bool = False,
    scope: str = "",
    inputs: Shapes | None = None,
    run_script: bool = False,
    out: PathText | None = None,
    server: str | None = None,
    state: PathText | None = None,
    progress: ProgressOption = True,
    reconnect_s: float = RECONNECT_S,
) -> BundleFile:
    """Compile the best schedules that the log knows of a model for `shares`, without a search.

    By `policy` the bundle has a variant for each share, or one that loses least at the worst of them (`robust`). Of
    every share's best, `rerank` are measured at these shares where the log lacks them. The bundle is the file `out`, by
    default `<model>.fractune` in the current folder. The other options and errors are those of `tune`.
    """
    if policy not in ("shares", ROBUST_VARIANT):
        raise BadRequest(f"policy '{policy}': write shares or {ROBUST_VARIANT}")
    check_above_zero("rerank", rerank)
    variants = ROBUST_VARIANT if policy == ROBUST_VARIANT else ""
    with model_file(model, run_script=run_script) as path:
        written = Path(out).absolute() if out is not None else bundle_file(".", path.name)
        check_writable("out", written)
        limits = {"rerank": rerank, "variants": variants, "exact": exact, "scope": scope}
        spec = job_spec(path.name, shares, inputs or {}, target=target, **limits)
        with finished_job(path, spec, folder(state), server, choose_view(progress), reconnect_s) as (place, job):
            if not job.bundle:
                raise JobFailed(f"{job.name} has no bundle: it is {job.state.value}")
            place.client.download_bundle(job.bundle, written)
    return BundleFile(written, job.name)


def matrix(
    model: ModelSource,
    shares: str | Sequence[str],
    *,
    operators: bool = False,
    rerank: int = 1,
    only: str = "",
    target: str = "",
    scope: str = "",
    inputs: Shapes | None = None,
    run_script: bool = False,
    server: str | None = None,
    state: PathText | None = None,
    progress: ProgressOption = True,
    reconnect_s: float = RECONNECT_S,
) -> Matrix:
    """How the schedules tuned for each share do at each of the others; measures what the log lacks, searches nothing.

    With `operators` there is a table for each operator too. The other options and errors are those of `tune`.
    """
    check_above_zero("rerank", rerank)
    with model_file(model, run_script=run_script) as path:
        spec = job_spec(path.name, shares, inputs or {}, target=target, only=only, rerank=rerank, scope=scope)
        with finished_job(path, spec, folder(state), server, choose_view(progress), reconnect_s) as (place, job):
            return Matrix((model_table(job), *(operator_tables(place.client, job) if operators else ())))


def knee(
    model: ModelSource,
    shares: str | Sequence[str],
    *,
    slack: float = 0.1,
    operators: bool = False,
    only: str = "",
    target: str = "",
    scope: str = "",
    inputs: Shapes | None = None,
    run_script: bool = False,
    server: str | None = None,
    state: PathText | None = None,
    progress: ProgressOption = True,
    reconnect_s: float = RECONNECT_S,
) -> KneeResult:
    """The smallest share at which the model takes at most `slack` longer than on the whole device (0.1 = 10 %).

    By what the log knows, at three shares or more for a curve; measures what it lacks, searches nothing. With
    `operators` each operator's knee too. The other options and errors are those of `tune`.
    """
    if not 0 <= slack <= 1:
        raise BadRequest(f"slack is {slack}; it must be from 0 to 1, 0.1 being 10 %")
    with model_file(model, run_script=run_script) as path:
        spec = job_spec(path.name, shares, inputs or {}, target=target, only=only, rerank=1, scope=scope)
        with finished_job(path, spec, folder(state), server, choose_view(progress), reconnect_s) as (place, job):
            tables = [model_table(job), *(operator_tables(place.client, job) if operators else ())]
    granted = {each.share: each.granted for each in job.results}
    measured = (table for table in tables if any(map(table.fastest, table.shares)))
    return KneeResult(tuple(fastest_knee(table, granted, slack) for table in measured))


def match(
    model: ModelSource,
    share: str,
    *,
    policy: str = "robust",
    allow_unmeasured: bool = False,
    inputs: Shapes | None = None,
    run_script: bool = False,
    target: str = "",
    scope: str = "",
    server: str | None = None,
    state: PathText | None = None,
) -> MatchResult:
    """Which record of the log each operator of a model would use at `share`, and why; measures nothing.

    `policy` is the loosest way to match that is allowed: `exact`, `near` or `robust`. With `allow_unmeasured` a near
    share's fastest is offered though its loss was never measured. The other options and errors are those of `tune`.
    """
    Share.parse(share)
    shapes(inputs or {})
    with model_file(model, run_script=run_script) as path, session(folder(state), server, compile=True) as client:
        return client.match(
            path,
            share,
            policy=policy,
            allow_unmeasured=allow_unmeasured,
            inputs=inputs,
            target=target,
            scope=scope,
        )


def folder(state: PathText | None) -> Path | None:
    return None if state is None else Path(state)
