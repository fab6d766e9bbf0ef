"""`fractune pack`: candidates of a model, built here; `fractune measure`: timed at shares of another machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.features.packs import carry_wheels, measure as measure_pack, pack as pack_model, requirements
from fractune_core.errors import BadRequest
from fractune_core.shares import Share, share_names


def pack(
    model: Annotated[Path, typer.Argument(help="Model file.")],
    candidates: Annotated[
        int, typer.Option("--candidates", min=1, help="Candidates of each operator, beside its untuned default.")
    ] = 48,
    target: options.Target = "",
    cores: Annotated[int, typer.Option("--cores", min=1, help="Cores of the largest CPU share to measure at.")] = 1,
    only: options.Only = "",
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


def measure(
    pack: Annotated[Path | None, typer.Argument(help="Pack file.")] = None,
    shares: Annotated[
        str, typer.Option("--shares", metavar="cpu:1,cpu:2", help="Shares of this machine to measure at.")
    ] = "cpu:1",
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="End after so many minutes with what there is.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="PEM file; only a pack that its owner signed is run.")
    ] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Run a pack without a check of its author.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write (default: PACK.times).")] = None,
    wheels: Annotated[
        bool, typer.Option("--wheels", help="List what such a host needs, a requirement a line; measure nothing.")
    ] = False,
    wheels_to: Annotated[
        Path | None,
        typer.Option("--wheels-to", metavar="FOLDER", help="Fetch these as small wheels into a new folder."),
    ] = None,
    python: Annotated[str, typer.Option("--python", metavar="3.12", help="The host's Python, for --wheels-to.")] = "",
    as_json: options.Json = False,
) -> None:
    """Measure a pack on this machine, which needs no compiler and no server. Call it again to go on.

    The times go into a log elsewhere: fractune log import model.times
    """
    names = share_names(shares)
    if wheels:
        print("\n".join(requirements(Share.parse(names[0]).device_kind)))
        return
    if wheels_to is not None:
        sizes = carry_wheels(wheels_to.absolute(), Share.parse(names[0]).device_kind, python)
        print(f"wheels: {len(sizes)} in {wheels_to}, {sum(sizes.values()) / 2**20:.1f} MiB")
        return
    if pack is None:
        raise BadRequest("name the pack, such as fractune measure model.pack --public-key public.pem")
    if (public_key is None) != unsigned:
        raise BadRequest(
            "a pack holds machine code: name the key of its owner with --public-key, or pass --unsigned to run it "
            "unchecked"
        )
    key = options.read_key("--public-key", public_key) if public_key else None
    found = measure_pack(pack, names, public_key=key, out=out, minutes=minutes)
    if as_json:
        print(json.dumps(found))
        return
    print(f"times:  {found['path']} ({found['trials']} trials, {found['validations']} validations)")
    if not found["complete"]:
        print("note: the time was over; call it again to go on")
    print(f"next:   fractune log import {found['path']}")
