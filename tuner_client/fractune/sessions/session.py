"""A client for one piece of work: of a server that is named or found, or of a stack started for the work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from fractune.local.stack import Stack, StackOptions, running_stack
from fractune.local.state import default_state_dir
from fractune.server.credentials import PLAIN, Credentials
from fractune.server.rpc import RECONNECT_S, RpcClient
from fractune.sessions.finding import PathText, named_server, running_stack_of, server_address
from fractune_core.errors import ServerUnreachable

_VERDICT_S = 1.0
"""how long a lost connection waits for the stack to say what broke"""


class _Closable(Protocol):
    def close(self) -> None: ...


AnyClient = TypeVar("AnyClient", bound=_Closable)


@contextlib.contextmanager
def session(
    connect: Callable[..., AnyClient],
    state: PathText | None,
    server: str | None,
    *,
    shares: tuple[str, ...] = (),
    compile: bool = False,  # noqa: A002  - the role's name
    search: bool = False,
    runs_jobs: bool = False,
) -> Iterator[AnyClient]:
    """`connect` to the server that is named or found, or run a stack in `state` with just the workers asked for.

    Who needs no workers is content with the stack of another command, too. Jobs that an earlier stack left open stay
    open, unless this one `runs_jobs`: then they would be in the way, and count as interrupted. Raises BadRequest when
    both are given, else what RpcClient and running_stack raise; a broken stack is reported as such, not as the lost
    connection that follows from it.
    """
    options = StackOptions(Path(), shares=shares, compile=compile, search=search, resume=not runs_jobs)
    any_stack = not (shares or compile or search)
    with _connected(connect, state, server, options, any_stack=any_stack) as (client, _):
        yield client


@contextlib.contextmanager
def server_session(
    connect: Callable[..., AnyClient],
    state: PathText | None,
    server: str | None,
    *,
    lasting: bool,
    reconnect_s: float = RECONNECT_S,
) -> Iterator[AnyClient]:
    """As `session`, on a server that runs already, as `server_address` finds it."""
    address = server_address(state, server, lasting=lasting)
    credentials = _credentials(named_server(state, server))
    with contextlib.closing(connect(address, credentials=credentials, reconnect_s=reconnect_s)) as client:
        yield client


@dataclass(frozen=True)
class Workplace:
    """Where a job is done."""

    client: RpcClient
    stack: Stack | None
    """started for this job alone; None for a server that goes on without us"""

    @property
    def is_own(self) -> bool:
        """It ends with the job."""
        return self.stack is not None

    def start_search(self) -> None:
        """Call it when the job begins to search: only then the workers for it start, since a model that the log knows
        needs none.
        """
        if self.stack is not None:
            self.stack.start_search()


@contextlib.contextmanager
def tuning_session(
    state: PathText | None, server: str | None, shares: tuple[str, ...], reconnect_s: float
) -> Iterator[Workplace]:
    """As `session`, for a job. A server that went away is waited for `reconnect_s`."""
    options = StackOptions(Path(), shares=shares, compile=True)
    connect = partial(RpcClient, reconnect_s=reconnect_s)
    with _connected(connect, state, server, options, any_stack=False) as (client, stack):
        yield Workplace(client, stack)


@contextlib.contextmanager
def _connected(
    connect: Callable[..., AnyClient],
    state: PathText | None,
    server: str | None,
    options: StackOptions,
    *,
    any_stack: bool,
) -> Iterator[tuple[AnyClient, Stack | None]]:
    named = named_server(state, server)
    address = named or _found(state, any_stack=any_stack)
    if address is not None:
        with contextlib.closing(connect(address, credentials=_credentials(named))) as client:
            yield client, None
        return
    options = replace(options, state=Path(state or default_state_dir()))
    with running_stack(options) as stack, contextlib.closing(connect(stack.address)) as client:
        stack.on_failure(client.close)
        with _named_failures(stack):
            yield client, stack


def _credentials(named: str | None) -> Credentials:
    """What the environment says of them is about the server that is named; a stack that is found asks for none."""
    return Credentials.found() if named else PLAIN


def _found(state: PathText | None, *, any_stack: bool) -> str | None:
    stack = running_stack_of(state)
    return stack.address if stack is not None and (any_stack or stack.for_others) else None


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
