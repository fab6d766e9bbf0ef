"""`fractune pack`: candidates of a model, built here to be measured on another machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.features.packs import pack as pack_model


def pack(
    model: Annotated[Path, typer.Argument(help="Model file.")],
    candidates: Annotated[
        int, typer.Option("--candidates", min=1, help="Candidates of each operator, beside its untuned default.")
    ] = 48,
    target: options.Target = "",
    cores: Annotated[int, typer.Option("--cores", min=1, help="Cores of the largest CPU share to measure at.")] = 1,
    only: Annotated[str, typer.Option("--only", help="Only operators whose name contains one of these (A,B).")] = "",
    inputs: options.Inputs = None,
    sizes: options.SizesByName = None,
    run_script: options.RunScript = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the candidates.")] = 0,
    sign: Annotated[
        Path | None, typer.Option("--sign", help="PEM file with the private Ed25519 key to sign the pack with.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write (default: MODEL.pack).")] = None,
    force: options.Force = False,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Build candidates of a model to be measured elsewhere. The search learns from the log, if there is one.

    Measure the pack on the other machine: fractune measure model.pack --shares cpu:1 --public-key public.pem
    """
    found = pack_model(
        model,
        out=out,
        target=target,
        candidates=candidates,
        cores=cores,
        only=only,
        inputs=options.parse_inputs(inputs),
        sizes=options.parse_one_size(sizes),
        run_script=run_script,
        seed=seed,
        private_key=options.read_key("--sign", sign) if sign else None,
        force=force,
        **vars(place),
    )
    if as_json:
        print(json.dumps(found))
        return
    print(
        f"pack:   {found['path']} ({found['bytes'] / 2**20:.1f} MiB, {'signed' if found['signed'] else 'not signed'})"
    )
    print(f"built:  {found['built']} of {found['candidates']} candidates of {found['operators']} operators")
