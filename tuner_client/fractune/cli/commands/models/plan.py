"""`fractune plan`: the placement of models on parts of devices."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.printing import print_json, print_tables
from fractune.cli.progress import choose_view
from fractune.features.plan.plan import plan as make_plan
from fractune.text.figure import check_picture
from fractune_core.errors import BadRequest


class Minimised(StrEnum):
    GPUS = "gpus"


def plan(
    file: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The models, their rates, and the device.")],
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="N", help="Largest number of devices.")] = None,
    minimise: Annotated[
        Minimised | None, typer.Option("--minimise", help="Use the fewest devices (the default).")
    ] = None,
    partitioning: Annotated[
        str, typer.Option("--partitioning", metavar="mig|mps|green|cpu|limit", help="How to divide a device.")
    ] = "",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate random arrivals, and add the headroom that p99 needs.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the simulation.")] = 0,
    measure: Annotated[bool, typer.Option("--measure", help="Time the shares that the plan depends on first.")] = False,
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw the devices here (.svg or .png).")] = None,
    as_json: options.Json = False,
    *,
    place: options.JobPlace,
) -> None:
    """Plan models onto parts of devices. The plan has the fewest devices for given rates, or is the best one for one
    device.
    """
    if minimise is not None and gpus is not None:
        raise BadRequest("--gpus and --minimise exclude each other: --gpus N allows N devices, and few may be used")
    check_picture(picture)
    made = make_plan(
        file,
        gpus=gpus,
        partitioning=partitioning,
        simulate=simulate,
        seed=seed,
        measure=measure,
        progress=choose_view(quiet=False, as_json=as_json),
        **vars(place),
    )
    if picture is not None:
        made.draw(picture)
    if as_json:
        print_json({"event": "plan", **made.to_json()})
    else:
        print_tables(made.table, made.models, *([made.slowdowns] if made.measured else []), picture=picture)
