"""`fractune tune`: a model in, a bundle out."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tuner_client.cli import options
from tuner_client.cli.progress import View, choose_view
from tuner_client.cli.result import check_ended_well, print_result, result_json, tuned_at_run_at
from tuner_client.cli.session import tuning_session
from tuner_client.client import Client
from tuner_client.noise_file import advice_for, measuring_text
from tuner_client.picture import check_picture, draw_table
from tuner_client.state import default_state_dir
from tuner_core.bundles import SUFFIX
from tuner_core.convert import DEFAULT_ROUND_SIZE, DEFAULT_TRIALS, spec_to_proto, state_from_proto
from tuner_core.errors import BadModel, BadRequest, FractuneError, JobFailed, StateUnusable
from tuner_core.jobs import JobSpec, JobState
from tuner_core.names import Collection
from tuner_core.pb import fractune_pb2 as pb
from tuner_core.shares import parse_shares

_NEEDS_SEARCH = (JobState.INGESTING, JobState.TUNING, JobState.FINISHING)
"""states that a model which the log knows passes at once; in others, a tuner instance would only be in the way"""


def tune(
    model: Annotated[Path, typer.Argument(help="ONNX file, TVM IRModule (JSON or TVMScript) or torch.export file.")],
    shares: Annotated[str, typer.Option("--shares", metavar="cpu:1,cpu:2", help="Shares to tune for.")],
    trials: Annotated[
        int, typer.Option("--trials", help="Candidates to have measured in all, known ones counted in.")
    ] = DEFAULT_TRIALS,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Stop searching after this long.")] = None,
    more: Annotated[int | None, typer.Option("--more", help="Candidates to measure beyond those known.")] = None,
    round_size: Annotated[int, typer.Option("--round", help="Candidates of a round at most.")] = DEFAULT_ROUND_SIZE,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search.")] = 0,
    target: options.Target = "",
    only: Annotated[str, typer.Option("--only", help="Only operators whose name contains this; several: A,B.")] = "",
    inputs: options.Inputs = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the bundle.")] = Path(),
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw the table tuned-at x run-at here (.svg or .png).")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", help="Higher goes first.")] = 0,
    server: options.Server = None,
    state: options.State = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result.")] = False,
    as_json: options.Json = False,
) -> None:
    """Tune a model for shares of this machine, or of a server's machines."""
    _check_above_zero("--more", more)
    _check_above_zero("--minutes", minutes)
    spec = JobSpec(
        model="",  # known once the file is read
        model_name=model.name,
        shares=tuple(str(share) for share in parse_shares(shares)),
        inputs=options.parse_inputs(inputs),
        target=target,
        trials=trials,
        more=more or 0,
        minutes=minutes or 0.0,
        round_size=round_size,
        only=only,
        seed=seed,
        priority=priority,
    )
    spec.check()
    bundle = _prepare_paths(model, out, picture)
    with tuning_session(state, server, spec.shares) as (client, start_search):
        job = _run_job(client, model, spec, choose_view(quiet=quiet, as_json=as_json), start_search)
        client.download_bundle(job.result.bundle, bundle)
    if as_json:
        print(json.dumps(result_json(job, str(bundle))), flush=True)
    else:
        print_result(job, str(bundle))
        if server is None:
            for share, advice in advice_for(state or default_state_dir(), spec.shares).items():
                print(measuring_text(share, advice))
    if picture is not None:
        draw_table(tuned_at_run_at(job), model.name, picture)
        if not as_json:
            print(f"picture: {picture}")


def _check_above_zero(option: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise BadRequest(f"{option} is {value}; it must be above 0, or left out")


def _prepare_paths(model: Path, out: Path, picture: Path | None) -> Path:
    """The bundle's path; what cannot be read or written is found out before anything starts."""
    if not model.is_file():
        raise BadModel(f"{model}: no such model file")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateUnusable(f"--out {out}: {error.strerror}; pass a folder that can be written") from error
    if not os.access(out, os.W_OK):
        raise StateUnusable(f"--out {out}: not writable; pass a folder that can be written")
    if picture is not None:
        check_picture(picture)
    return out.absolute() / f"{model.stem}{SUFFIX}"


def _run_job(client: Client, model: Path, spec: JobSpec, view: View, start_search: Callable[[], None]) -> pb.Job:
    """Submit the job and follow it to its end; stopping this command cancels it."""

    def show(job: pb.Job) -> None:
        if state_from_proto(job.state) in _NEEDS_SEARCH:
            start_search()
        view.show(job)

    sha256 = Collection.MODELS.parse(client.upload_model(model).name)
    job = client.create_job(spec_to_proto(replace(spec, model=sha256)))
    with _cancelled_when_stopped(client, job.name), view:
        job = follow(client, job.name, show)
    check_ended_well(job)
    return job


def follow(client: Client, job: str, show: Callable[[pb.Job], None]) -> pb.Job:
    """Show the job whenever it has changed until it has ended, and return it."""
    ended = None
    for ended in client.watch_job(job):
        show(ended)
    if ended is None:
        raise JobFailed(f"the server said nothing about {job}; look at its log")
    return ended


@contextlib.contextmanager
def _cancelled_when_stopped(client: Client, job: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        raise
    except BaseException:  # Ctrl-C or SIGTERM: nobody waits for this job any more
        with contextlib.suppress(FractuneError):
            client.cancel_job(job)
        raise
