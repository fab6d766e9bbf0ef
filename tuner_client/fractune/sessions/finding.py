"""The server for a caller: the named one, else that of the environment, else the stack of the state folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fractune.local.stack_lock import StackEntry, is_running, read_entry
from fractune.local.state import default_state_dir
from fractune_core.errors import BadRequest, ServerUnreachable

SERVER = "FRACTUNE_SERVER"
"""environment variable with the server for callers that name neither a server nor a state folder"""


PathText: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class PlaceOptions:
    """The options of a call that say where its jobs run."""

    server: str | None
    state: PathText | None
    reconnect_s: float
    """an unreachable server is awaited for that long"""

    @property
    def named_server(self) -> str | None:
        """The server that the call or FRACTUNE_SERVER names; None if neither does. Raises BadRequest for both a folder
        and a server.
        """
        return named_server(self.state, self.server)


def named_server(state: PathText | None, server: str | None) -> str | None:
    """The server that the caller or FRACTUNE_SERVER names; None if neither does.

    A given `state` overrides the environment. Raises BadRequest for both a folder and a server.
    """
    if server is not None and state is not None:
        raise BadRequest("--state and --server exclude each other: a server has its own state folder")
    return server if server is not None or state is not None else os.environ.get(SERVER) or None


def running_stack_of(state: PathText | None) -> StackEntry | None:
    """The stack that is serving in the folder (default: the user's), or None."""
    folder = state_folder(state)
    entry = read_entry(folder) if is_running(folder) else None
    return entry if entry and entry.address else None


def server_address(state: PathText | None = None, server: str | None = None, *, lasting: bool) -> str:
    """The address of the named server, or else of the running stack of the state folder; starts no stack.

    `lasting` requires a stack that outlives the command that started it, such as that of `fractune up`. Raises
    ServerUnreachable if no stack is running or it has died, and BadRequest for both a folder and a server.
    """
    named = named_server(state, server)
    if named is not None:
        return named
    found = running_stack_of(state)
    if found is None or (lasting and not found.for_others):
        folder = state_folder(state)
        raise ServerUnreachable(f"{_missing(folder)}, or pass --server HOST:PORT")
    return found.address


def state_folder(state: PathText | None) -> Path:
    """The folder of the caller's stack (default: the user's)."""
    return Path(state or default_state_dir()).expanduser().absolute()


def _missing(folder: Path) -> str:
    entry = read_entry(folder)
    if is_running(folder):
        if entry is not None and entry.address:
            return f"the stack in {folder} ends with the command that started it (pid {entry.pid}); wait for it"
        return f"the stack in {folder} is still starting; try again in a moment"
    if entry is None:
        return f"no stack is running in {folder}; start one with 'fractune up'"
    return f"the stack that ran in {folder} has died (pid {entry.pid} is gone); start it again with 'fractune up'"
