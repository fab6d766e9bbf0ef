"""`fractune tune`: a model in, a bundle out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.progress import choose_view
from fractune.cli.submit import finished_job
from fractune.local.noise_file import advice_for, measuring_text
from fractune.local.state import default_state_dir
from fractune.output_files import check_writable
from fractune.reports.cross_table import model_table
from fractune.reports.picture import check_picture, draw_table
from fractune.reports.result import print_result, result_json
from fractune_core.bundles import SUFFIX
from fractune_core.convert import DEFAULT_ROUND_SIZE, DEFAULT_TRIALS
from fractune_core.errors import BadRequest


def tune(
    model: options.ModelFile,
    shares: Annotated[str, typer.Option("--shares", metavar="cpu:1,cpu:2", help="Shares to tune for.")],
    trials: Annotated[
        int, typer.Option("--trials", help="Candidates to have measured in all, known ones counted in.")
    ] = DEFAULT_TRIALS,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Stop searching after this long.")] = None,
    more: Annotated[int | None, typer.Option("--more", help="Candidates to measure beyond those known.")] = None,
    round_size: Annotated[int, typer.Option("--round", help="Candidates of a round at most.")] = DEFAULT_ROUND_SIZE,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search.")] = 0,
    target: options.Target = "",
    rerank: Annotated[
        int | None,
        typer.Option("--rerank", help="Search nothing: measure the best this many of every share in the log here."),
    ] = None,
    only: options.Only = "",
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
    for option, value in (("--more", more), ("--minutes", minutes), ("--rerank", rerank)):
        _check_above_zero(option, value)
    spec = options.job_spec(
        model,
        shares,
        inputs=inputs,
        target=target,
        trials=trials,
        more=more or 0,
        minutes=minutes or 0.0,
        round_size=round_size,
        only=only,
        seed=seed,
        priority=priority,
        rerank=rerank or 0,
    )
    bundle = _prepare_paths(model, out, picture)
    with finished_job(model, spec, state, server, choose_view(quiet=quiet, as_json=as_json)) as (client, job):
        client.download_bundle(job.result.bundle, bundle)
        # Asked of the stack while it is there.
        measurers = client.measurers() if server is None and not as_json else Counter[str]()
    if as_json:
        print(json.dumps(result_json(job, str(bundle))), flush=True)
    else:
        print_result(job, str(bundle))
        if server is None:
            for share, advice in advice_for(state or default_state_dir(), spec.shares).items():
                print(measuring_text(share, advice, measurers[share]))
    if picture is not None:
        draw_table(model_table(job), picture)
        if not as_json:
            print(f"picture: {picture}")


def _check_above_zero(option: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise BadRequest(f"{option} is {value}; it must be above 0, or left out")


def _prepare_paths(model: Path, out: Path, picture: Path | None) -> Path:
    """The bundle's path; what cannot be written is found out before anything starts."""
    bundle = out.absolute() / f"{model.stem}{SUFFIX}"
    check_writable("--out", bundle)
    if picture is not None:
        check_picture(picture)
    return bundle
