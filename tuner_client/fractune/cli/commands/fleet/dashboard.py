"""`fractune dashboard`: the pages of a server."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.features.client import Client
from fractune.local.noise_file import advice_for
from fractune.local.programs import require
from fractune.server.credentials import PLAIN, Credentials
from fractune.server.rpc import RpcClient
from fractune.sessions.session import named_server, server_session, state_folder
from fractune_core.access.tls_files import TlsFiles
from fractune_core.errors import BadRequest, FractuneError, ServerUnreachable

_LOOK_S = 2.0


def dashboard(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address of the pages; port 0 takes a free one.")
    ] = options.DEFAULT_PAGES,
    allow_cancel: Annotated[
        bool, typer.Option("--allow-cancel", help="Let readers of the pages cancel jobs, by the token that reads.")
    ] = False,
    page_token_file: Annotated[
        Path | None, typer.Option("--page-token-file", help="File with the password that a browser asks for.")
    ] = None,
    sign_in: Annotated[
        bool, typer.Option("--sign-in", help="Ask each reader for a token of the server; pages show what it may see.")
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Serve HTTPS with this certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="The key of --tls-cert.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let whoever reaches the address read, without credentials.")
    ] = False,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Show a server's jobs, workers and log in a browser, until stopped."""
    require("web", "starlette", "uvicorn", "jinja2", "multipart")
    from fractune.dashboard.serving import PageOptions, serve_pages
    from fractune.dashboard.sign_in import Entrance

    if (tls_cert is None) != (tls_key is None):
        raise BadRequest("--tls-cert and --tls-key go together; pass both")
    tls = TlsFiles(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    connect: Callable[..., Client | Entrance] = Entrance if sign_in else Client
    with server_session(connect, **vars(place), lasting=True) as client:

        def ready(address: str, token: str) -> None:
            said = {"event": "ready", "address": address, "server": client.address, "token": token or None}
            password = f" with the password {token}" if token else ""
            typer.echo(json.dumps(said) if as_json else f"{address} shows {client.address}{password}; Ctrl-C stops it")
            _say_if_away(client.address, is_here=is_here)

        is_here = named_server(place.state, place.server) is None
        advise = partial(advice_for, state_folder(place.state)) if is_here else None
        serve_pages(client, PageOptions(listen, tls, page_token_file, insecure, allow_cancel, advise), ready)


def _say_if_away(address: str, *, is_here: bool) -> None:
    """Pages may start before their server, such as in a file of compose."""
    with RpcClient(address, _LOOK_S, PLAIN if is_here else Credentials.found()) as server:
        try:
            server.is_serving("")
        except ServerUnreachable as error:
            typer.echo(f"fractune: {error}; the pages go on trying", err=True)
        except FractuneError:  # it answers; the pages say what it refuses
            return
