"""`fractune up`: the whole stack on this machine, for other clients; `fractune dashboard`: the pages of a server."""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.features.client import Client
from fractune.local.noise_file import advice_for
from fractune.local.programs import Pages, require, running_pages
from fractune.local.stack import Stack, StackOptions, running_stack
from fractune.local.state import default_state_dir
from fractune.server.credentials import PLAIN, Credentials
from fractune.server.rpc import RpcClient
from fractune.sessions.session import named_server, server_session, state_folder
from fractune_core.access import TlsFiles, is_local
from fractune_core.errors import BadRequest, FractuneError, ServerUnreachable
from fractune_core.shares import share_names, with_kernel_shares

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


def default_shares() -> str:
    """`cpu:1,cpu:2,cpu:4 ...` up to all cores of this process."""
    cores = len(os.sched_getaffinity(0))
    return ",".join(f"cpu:{1 << power}" for power in range(cores.bit_length()))


def _measurers(stack: Stack) -> Counter[str]:
    """Live measurers by share. A server that has just died is restarted, and this waits for it."""
    while True:
        try:
            with RpcClient(stack.own_address) as client:
                return client.measurers()
        except ServerUnreachable:
            failure = stack.failure(timeout_s=0.1)
            if failure is not None:
                raise failure from None


def ready_text(stack: Stack, shares: Sequence[str], pages: Pages | None, *, as_json: bool) -> str:
    """What is printed when the stack serves: one JSON object, or a line for the stack and one for its pages."""
    measurers = _measurers(stack)
    if as_json:
        ready = {"event": "ready", "address": stack.address, "shares": list(shares), "measurers": measurers}
        ready["skipped_shares"] = stack.skipped_shares
        shown = {} if pages is None else {"dashboard": {"address": pages.address, "token": pages.token or None}}
        return json.dumps(ready | shown)
    offers = (f"{share} ({measurers[share]} measurers)" if measurers[share] > 1 else share for share in shares)
    text = f"serving at {stack.address} with {', '.join(offers)}; Ctrl-C stops it"
    text += "".join(f"\n{share} is skipped: {cause}" for share, cause in stack.skipped_shares.items())
    if pages is None:
        return text
    return f"{text}\n{pages.address} shows it{f' with the password {pages.token}' if pages.token else ''}"


def await_failure(stack: Stack, pages: Pages | None) -> FractuneError:
    """The error that breaks the stack. It outlives its pages; their end is reported."""
    while (failure := stack.failure(timeout_s=1.0)) is None:
        if pages is not None and (reason := pages.end_reason()):
            typer.echo(f"fractune: the dashboard has ended, and the stack goes on: {reason}", err=True)
            pages = None
    return failure


def _check_pages(listen: str) -> None:
    """Raises BadRequest, before the stack starts, for an address at which its page cannot be served."""
    require("web", "starlette", "uvicorn", "jinja2", "multipart")
    from fractune.dashboard.serving import bound_at

    bound_at("--dashboard-listen", listen).close()
    if not is_local(listen):
        raise BadRequest(
            f"--dashboard-listen {listen} can be reached from other machines; use 127.0.0.1, or 'fractune dashboard', "
            "which takes a certificate and a password"
        )


def up(
    shares: Annotated[str, typer.Option("--shares", help="Shares to offer (default: cpu:1, cpu:2, cpu:4 ...).")] = "",
    state: options.State = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show the stack on a page, as 'fractune dashboard' does.")
    ] = False,
    dashboard_listen: Annotated[
        str | None,
        typer.Option(
            "--dashboard-listen",
            metavar="HOST:PORT",
            help=f"Address of the page, with --dashboard (default: {options.DEFAULT_PAGES}); port 0 takes a free one.",
        ),
    ] = None,
    as_json: options.Json = False,
    *,
    serving: options.Serving,
) -> None:
    """Run the whole stack on this machine until stopped, for other clients."""
    offered = with_kernel_shares(share_names(shares or default_shares()))
    stack_options = StackOptions(
        state or default_state_dir(), shares=offered, compile=True, search=True, resume=True, **serving.parsed()
    )
    listen = dashboard_listen or options.DEFAULT_PAGES
    shows_pages = dashboard or dashboard_listen is not None
    if shows_pages:
        _check_pages(listen)
    with running_stack(stack_options) as stack, contextlib.ExitStack() as beside:
        shown = running_pages(stack_options.state, "--listen", listen)
        pages = beside.enter_context(shown) if shows_pages else None
        had = [share for share in offered if share not in stack.skipped_shares]
        typer.echo(ready_text(stack, had, pages, as_json=as_json))
        raise await_failure(stack, pages)
