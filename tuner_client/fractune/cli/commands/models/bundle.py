"""`fractune bundle`: the best that the log knows of a model, compiled; or what a finished job has compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fractune.api.server.sessions import session
from fractune.api.tuning import bundle as bundle_model
from fractune.cli import options
from fractune.cli.progress import choose_view
from fractune.inference.signatures import check_private_key
from fractune.output_files import check_writable
from fractune.rpc import RECONNECT_S
from fractune_core.errors import BadRequest
from fractune_core.names import ROBUST_VARIANT

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
    exact: options.Exact = False,
    scope: options.Scope = "",
    out: Annotated[Path | None, typer.Option("--out", help="File to write (default: after the model).")] = None,
    server: options.Server = None,
    state: options.State = None,
    reconnect_s: options.ReconnectS = RECONNECT_S,
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
            made = client.job(of).bundle(out)
    elif not shares:
        raise BadRequest(f"{of}: name the shares that the model is to be served at, such as --shares cpu:1,cpu:2")
    else:
        made = bundle_model(
            model,
            shares,
            policy=policy,
            rerank=rerank,
            target=target,
            exact=exact,
            scope=scope,
            inputs=options.parse_inputs(inputs),
            out=out,
            server=server,
            state=state,
            progress=choose_view(quiet=False, as_json=as_json),
            reconnect_s=reconnect_s,
        )
    if key is not None:
        made.sign(key)
    print(json.dumps({"job": made.job, "bundle": str(made.path)}) if as_json else f"bundle: {made.path}")
