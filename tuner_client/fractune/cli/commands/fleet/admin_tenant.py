"""`fractune admin tenant`: the tenants of a server, managed on its own machine, also while it runs."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fractune.cli import options
from fractune.cli.commands.fleet.admin_token import USED, ServerDatabase, print_rows, used_cells
from fractune.cli.group import Group
from fractune.text.rendering import Column
from fractune.text.text import parse_bytes
from fractune_core.access.tokens import Quotas
from fractune_core.errors import BadRequest

app = typer.Typer(help="Tenants: create, list, set, remove.", rich_markup_mode=None, cls=Group)

_MOST = (1 << 63) - 1
_NONE = "none"

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: lower-case letters, digits and '-'.")]


@dataclass(frozen=True)
class Fields:
    """The options of what is stored of a tenant."""

    jobs: Annotated[str | None, typer.Option("--jobs", metavar="N", help="Limit of open jobs; 'none' lifts it.")] = None
    trials_a_day: Annotated[
        str | None,
        typer.Option("--trials-a-day", metavar="N", help="Limit of trials of jobs created within 24 hours; or 'none'."),
    ] = None
    size: Annotated[
        str | None,
        typer.Option("--bytes", metavar="50GiB", help="Limit of the size of its models and bundles; or 'none'."),
    ] = None
    share_seconds_a_day: Annotated[
        str | None,
        typer.Option(
            "--share-seconds-a-day", metavar="N", help="Limit of seconds on shares within 24 hours; or 'none'."
        ),
    ] = None
    weight: Annotated[
        int | None, typer.Option("--weight", min=1, max=1000, help="Its part of the fleet beside other tenants' (1).")
    ] = None
    shares: Annotated[
        bool | None,
        typer.Option(
            "--share-searches/--no-share-searches",
            help="Give and take schedules and times of equal operators, with the other tenants that do (no).",
        ),
    ] = None

    def quotas(self) -> dict[str, int | None]:
        """The quotas that are given, by their names in Quotas. Raises BadRequest."""
        limits = {
            "open_jobs": ("--jobs", self.jobs),
            "trials_a_day": ("--trials-a-day", self.trials_a_day),
            "share_seconds_a_day": ("--share-seconds-a-day", self.share_seconds_a_day),
        }
        found = {name: _limit(option, text) for name, (option, text) in limits.items() if text is not None}
        if self.size is not None:
            found["stored_bytes"] = None if self.size == _NONE else parse_bytes("--bytes", self.size)
        return found

    def others(self) -> dict[str, Any]:
        given = {"weight": self.weight, "shares_searches": self.shares}
        return {name: value for name, value in given.items() if value is not None}


@app.command()
def create(name: _Name, given: Fields, of_server: ServerDatabase, as_json: options.Json = False) -> None:
    """Create a tenant. Its tokens come from `fractune admin token create --tenant`."""
    of_server.admin().create_tenant(name, Quotas(**given.quotas()), **given.others())
    _say(name, "is created", as_json=as_json)


@app.command("list")
def list_(of_server: ServerDatabase, as_json: options.Json = False) -> None:
    """List tenants by name, with the used part of their quotas."""
    columns = (Column("tenant"), Column("weight"), Column("shares searches"), *map(Column, USED))
    print_rows(of_server.admin().list_tenants(), columns, _cells, as_json=as_json)


@app.command("set")
def set_(name: _Name, given: Fields, of_server: ServerDatabase, as_json: options.Json = False) -> None:
    """Change a tenant: what is not named stays as it is."""
    quotas, others = given.quotas(), given.others()
    if not quotas and not others:
        raise BadRequest("name what to change, such as --jobs 20 or --weight 2")
    of_server.admin().set_tenant(name, quotas, others)
    _say(name, "is changed", as_json=as_json)


@app.command()
def remove(name: _Name, of_server: ServerDatabase, as_json: options.Json = False) -> None:
    """Remove a tenant that has no valid token and has stored nothing."""
    of_server.admin().remove_tenant(name)
    _say(name, "is removed", as_json=as_json)


def _limit(option: str, text: str) -> int | None:
    if text == _NONE:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(_MOST)) or int(text) > _MOST:
        raise BadRequest(f"{option} '{text[:40]}': write a whole number, or {_NONE}")
    return int(text)


def _cells(tenant: dict[str, Any]) -> tuple[str, ...]:
    shares = "yes" if tenant["shares_searches"] else "no"
    return tenant["tenant"], str(tenant["weight"]), shares, *used_cells(tenant)


def _say(name: str, what: str, *, as_json: bool) -> None:
    print(json.dumps({"tenant": name}) if as_json else f"tenant {name} {what}")
