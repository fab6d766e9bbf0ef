"""`fractune admin tenant`: the tenants of a server, managed on its own machine, also while it runs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from fractune.cli import options
from fractune.cli.commands.fleet.admin_token import USED, State, address_of, used_cells
from fractune.cli.group import Group
from fractune.local.programs import server_admin
from fractune.local.state import default_state_dir
from fractune.text.rendering import Column, Table
from fractune.text.text import parse_bytes
from fractune_core.access.tokens import Quotas
from fractune_core.errors import BadRequest

app = typer.Typer(help="Tenants: create, list, set, remove.", rich_markup_mode=None, cls=Group)

_MOST = (1 << 63) - 1
_NONE = "none"

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: lower-case letters, digits and '-'.")]
_Jobs = Annotated[str | None, typer.Option("--jobs", metavar="N", help="Limit of open jobs; 'none' lifts it.")]
_Trials = Annotated[
    str | None,
    typer.Option("--trials-a-day", metavar="N", help="Limit of trials of jobs created within 24 hours; or 'none'."),
]
_Bytes = Annotated[
    str | None, typer.Option("--bytes", metavar="50GiB", help="Limit of the size of its models and bundles; or 'none'.")
]
_Seconds = Annotated[
    str | None,
    typer.Option("--share-seconds-a-day", metavar="N", help="Limit of seconds on shares within 24 hours; or 'none'."),
]
_Weight = Annotated[
    int | None, typer.Option("--weight", min=1, max=1000, help="Its part of the fleet beside other tenants' (1).")
]
_Shares = Annotated[
    bool | None,
    typer.Option(
        "--share-searches/--no-share-searches",
        help="Give and take schedules and times of equal operators, with the other tenants that do (no).",
    ),
]


@app.command()
def create(
    name: _Name,
    jobs: _Jobs = None,
    trials_a_day: _Trials = None,
    size: _Bytes = None,
    share_seconds_a_day: _Seconds = None,
    weight: _Weight = None,
    shares: _Shares = None,
    state: State = None,
    database: options.Database = None,
    database_password_file: options.DatabasePasswordFile = None,
    as_json: options.Json = False,
) -> None:
    """Create a tenant. Its tokens come from `fractune admin token create --tenant`."""
    quotas = Quotas(**_quotas(jobs, trials_a_day, size, share_seconds_a_day))
    address = address_of(state, database, database_password_file)
    server_admin(address).create_tenant(state or default_state_dir(), address, name, quotas, **_others(weight, shares))
    _say(name, "is created", as_json=as_json)


@app.command("list")
def list_(
    state: State = None,
    database: options.Database = None,
    database_password_file: options.DatabasePasswordFile = None,
    as_json: options.Json = False,
) -> None:
    """List tenants by name, with the used part of their quotas."""
    address = address_of(state, database, database_password_file)
    found = server_admin(address).list_tenants(state or default_state_dir(), address)
    if as_json:
        for each in found:
            print(json.dumps(each))
        return
    columns = (Column("tenant"), Column("weight"), Column("shares searches"), *map(Column, USED))
    Table(columns, tuple(map(_cells, found))).print()


@app.command("set")
def set_(
    name: _Name,
    jobs: _Jobs = None,
    trials_a_day: _Trials = None,
    size: _Bytes = None,
    share_seconds_a_day: _Seconds = None,
    weight: _Weight = None,
    shares: _Shares = None,
    state: State = None,
    database: options.Database = None,
    database_password_file: options.DatabasePasswordFile = None,
    as_json: options.Json = False,
) -> None:
    """Change a tenant: what is not named stays as it is."""
    quotas, others = _quotas(jobs, trials_a_day, size, share_seconds_a_day), _others(weight, shares)
    if not quotas and not others:
        raise BadRequest("name what to change, such as --jobs 20 or --weight 2")
    address = address_of(state, database, database_password_file)
    server_admin(address).set_tenant(state or default_state_dir(), address, name, quotas, others)
    _say(name, "is changed", as_json=as_json)


@app.command()
def remove(
    name: _Name,
    state: State = None,
    database: options.Database = None,
    database_password_file: options.DatabasePasswordFile = None,
    as_json: options.Json = False,
) -> None:
    """Remove a tenant that has no valid token and has stored nothing."""
    address = address_of(state, database, database_password_file)
    server_admin(address).remove_tenant(state or default_state_dir(), address, name)
    _say(name, "is removed", as_json=as_json)


def _quotas(jobs: str | None, trials: str | None, size: str | None, seconds: str | None) -> dict[str, int | None]:
    """The quotas that are given, by their names in Quotas."""
    limits = {
        "open_jobs": ("--jobs", jobs),
        "trials_a_day": ("--trials-a-day", trials),
        "share_seconds_a_day": ("--share-seconds-a-day", seconds),
    }
    found = {name: _limit(option, text) for name, (option, text) in limits.items() if text is not None}
    if size is not None:
        found["stored_bytes"] = None if size == _NONE else parse_bytes("--bytes", size)
    return found


def _limit(option: str, text: str) -> int | None:
    if text == _NONE:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(_MOST)) or int(text) > _MOST:
        raise BadRequest(f"{option} '{text[:40]}': write a whole number, or {_NONE}")
    return int(text)


def _others(weight: int | None, shares: bool | None) -> dict[str, Any]:
    given = {"weight": weight, "shares_searches": shares}
    return {name: value for name, value in given.items() if value is not None}


def _cells(tenant: dict[str, Any]) -> tuple[str, ...]:
    shares = "yes" if tenant["shares_searches"] else "no"
    return tenant["tenant"], str(tenant["weight"]), shares, *used_cells(tenant)


def _say(name: str, what: str, *, as_json: bool) -> None:
    print(json.dumps({"tenant": name}) if as_json else f"tenant {name} {what}")
