"""`fractune bundle`: the best that the log knows of a model, compiled; or what a finished job has compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.progress import choose_view
from fractune.cli.session import session
from fractune.cli.submit import finished_job
from fractune.client import Client
from fractune.inference.signatures import check_private_key, sign_bundle
from fractune.output_files import check_writable
from fractune_core.bundles import SUFFIX
from fractune_core.convert import state_from_proto
from fractune_core.errors import BadRequest, JobFailed
from fractune_core.names import ROBUST_VARIANT
from fractune_core.pb import fractune_pb2 as pb

_POLICIES = ("shares", ROBUST_VARIANT)


def bundle(
    of: Annotated[str, typer.Argument(metavar="MODEL|JOB", help="Model file, or the name of a finished job.")],
    shares: Annotated[
        str, typer.Option("--shares", metavar="cpu:1,cpu:2", help="Shares that a model is to be served at.")
    ] = "",
    policy: Annotated[
        str, typer.Option("--policy", help="Of a model: a variant for each share (shares), or one for all (robust).")
    ] = "shares",
    rerank: Annotated[
        int, typer.Option("--rerank", min=1, help="Measure this many of every share's best trials where they lack.")
    ] = 1,
    sign: Annotated[
        Path | None, typer.Option("--sign", help="PEM file with the private Ed25519 key to sign the bundle with.")
    ] = None,
    inputs: options.Inputs = None,
    target: options.Target = "",
    out: Annotated[Path | None, typer.Option("--out", help="File to write (default: after the model).")] = None,
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Write a bundle of the best schedules in the log, without a search; or download the one of a finished job."""
    if policy not in _POLICIES:
        raise BadRequest(f"--policy '{policy}': write {' or '.join(_POLICIES)}")
    key = options.read_key("--sign", sign) if sign else None
    if key is not None:
        check_private_key(key)
    if out is not None:
        check_writable("--out", out)
    model = Path(of)
    if not model.is_file() and (shares or model.suffix):
        raise options.no_model(model)
    if not model.is_file():
        with session(state, server) as client:
            _download(client, client.get_job(of), out, key, as_json=as_json)
        return
    if not shares:
        raise BadRequest(f"{of}: name the shares that the model is to be served at, such as --shares cpu:1,cpu:2")
    variants = ROBUST_VARIANT if policy == ROBUST_VARIANT else ""
    spec = options.job_spec(model, shares, inputs=inputs, target=target, rerank=rerank, variants=variants)
    view = choose_view(quiet=False, as_json=as_json)
    with finished_job(model, spec, state, server, view) as (client, job):
        _download(client, job, out, key, as_json=as_json)


def _download(client: Client, job: pb.Job, out: Path | None, key: bytes | None, *, as_json: bool) -> None:
    if not job.result.bundle:
        raise JobFailed(f"{job.name} has no bundle: it is {state_from_proto(job.state).value}")
    path = (out or Path(Path(job.model_display_name).stem + SUFFIX)).absolute()
    client.download_bundle(job.result.bundle, path)
    if key is not None:
        sign_bundle(path, key)
    print(json.dumps({"job": job.name, "bundle": str(path)}) if as_json else f"bundle: {path}")
