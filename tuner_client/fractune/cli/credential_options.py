"""The options by which a client knows a server and shows who it is: the same for every command with --server.

They set the environment variables of `fractune.server.credentials`, which hold file names and no secrets.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fractune.server.credentials import VARIABLES

_HELP = {
    "ca": "Use TLS with --server; the file has its authority's certificate.",
    "token_file": "File with the token for --server.",
    "client_cert": "Certificate of this client, where --server asks for one.",
    "client_key": "The key of --client-cert.",
}


def with_credentials(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, with these options if it takes --server."""
    signature = inspect.signature(command, eval_str=True)
    if "server" not in signature.parameters or "token_file" in signature.parameters:
        return command

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        for name, variable in VARIABLES.items():
            path = given.pop(name)
            if path is not None:
                os.environ[variable] = str(path)
        return command(**given)

    added = [_parameter(name) for name in VARIABLES]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *added]
    )
    return run


def _parameter(name: str) -> inspect.Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", help=f"{_HELP[name]} [{VARIABLES[name]}]")
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, option]
    )
