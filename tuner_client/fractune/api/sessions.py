"""A client for one piece of work: of the server that the user named, or of a stack started for the work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from fractune.api.client import Client
from fractune.credentials import Credentials
from fractune.local.stack import Stack, StackOptions, running_stack
from fractune.local.state import default_state_dir
from fractune.rpc import RpcClient
from fractune_core.errors import BadRequest, ServerUnreachable

_VERDICT_S = 1.0
"""how long a lost connection waits for the stack to say what broke"""


class _Closable(Protocol):
    def close(self) -> None: ...


AnyClient = TypeVar("AnyClient", bound=_Closable)


@contextlib.contextmanager
def session(
    state: Path | None,
    server: str | None,
    *,
    shares: tuple[str, ...] = (),
    compile: bool = False,  # noqa: A002  - the role's name
    search: bool = False,
) -> Iterator[Client]:
    """Connect to `server`, or run a stack in `state` with just the workers asked for.

    Raises BadRequest when both are given, else what RpcClient and running_stack raise; a broken stack is reported as
    such, not as the lost connection that follows from it.
    """
    options = StackOptions(Path(), shares=shares, compile=compile, search=search)
    with _connected(Client, state, server, options) as (client, _):
        yield client


@contextlib.contextmanager
def tuning_session(
    state: Path | None, server: str | None, shares: tuple[str, ...]
) -> Iterator[tuple[RpcClient, Callable[[], None]]]:
    """As `session`, for a job; call the function when the job begins to search: only then the workers for it start,
    since a model that the log knows needs none.
    """
    with _connected(RpcClient, state, server, StackOptions(Path(), shares=shares, compile=True)) as (client, stack):
        yield client, stack.start_search if stack is not None else lambda: None


@contextlib.contextmanager
def _connected(
    connect: Callable[..., AnyClient], state: Path | None, server: str | None, options: StackOptions
) -> Iterator[tuple[AnyClient, Stack | None]]:
    if server is not None:
        if state is not None:
            raise BadRequest("--state and --server exclude each other: a server has a state folder of its own")
        with contextlib.closing(connect(server, credentials=Credentials.found())) as client:
            yield client, None
        return
    options = replace(options, state=state or default_state_dir())
    with running_stack(options) as stack, contextlib.closing(connect(stack.address)) as client:
        stack.on_failure(client.close)
        with _named_failures(stack):
            yield client, stack


@contextlib.contextmanager
def _named_failures(stack: Stack) -> Iterator[None]:
    """Raise what broke the stack in place of the lost connection that follows from it."""
    try:
        yield
    except ServerUnreachable:
        failure = stack.failure(_VERDICT_S)
        if failure is not None:
            raise failure from None
        raise
