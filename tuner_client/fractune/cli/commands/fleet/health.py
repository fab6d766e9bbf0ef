"""`fractune health`: whether a server works, for people and for supervisors that restart servers."""

import json
from typing import Annotated

import typer

from fractune.cli import options
from fractune.server.credentials import Credentials
from fractune.server.rpc import RpcClient
from fractune.sessions.session import named_server
from fractune_core.errors import FractuneError
from fractune_core.names import HealthPart


def health(
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="HOST:PORT",
            help=f"The server; unix:PATH too (else FRACTUNE_SERVER, else {options.DEFAULT_LISTEN}).",
        ),
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for an answer.")] = 5.0,
    live: Annotated[bool, typer.Option("--live", help="Check only whether the server must be restarted.")] = False,
    as_json: options.Json = False,
) -> None:
    """Report whether a server is healthy. The exit code is 0 or 1, and 5 if the server does not answer."""
    parts = [HealthPart.ENGINE] if live else list(HealthPart)
    server = named_server(None, server) or options.DEFAULT_LISTEN
    with RpcClient(server, timeout_s, Credentials.found()) as client:
        found = {part.value: client.is_serving(part.value) for part in parts}
    if as_json:
        print(json.dumps({"server": server, "healthy": all(found.values()), "parts": found}))
    else:
        for part, works in found.items():
            print(f"{part}: {'ok' if works else 'failing'}")
    failing = [part for part, works in found.items() if not works]
    if failing:
        raise FractuneError(f"the server at {server} is not ready: {', '.join(failing)}; its log says why")
