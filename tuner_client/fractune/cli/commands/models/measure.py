"""`fractune measure`: the candidates of a pack, timed at shares of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.features.packs import carry_wheels, requirements
from fractune.features.packs import measure as measure_pack
from fractune_core.errors import BadRequest
from fractune_core.shares import Share, share_names


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
