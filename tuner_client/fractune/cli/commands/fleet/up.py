"""`fractune up`: the whole stack on this machine, for other clients."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.local.programs import require
from fractune.local.stack import Stack, StackOptions, own_env, running_stack
from fractune.local.state import default_state_dir
from fractune.server.rpc import RpcClient
from fractune_core.errors import ServerUnreachable
from fractune_core.shares import share_names, with_kernel_shares


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


@contextlib.contextmanager
def _dashboard(state: Path, *, wanted: bool) -> Iterator[None]:
    """The pages of the stack in a process of their own, which ends with the block."""
    if not wanted:
        yield
        return
    command = [sys.executable, "-m", "fractune.cli", "dashboard", "--state", str(state)]
    process = subprocess.Popen(command, env={**os.environ, **own_env()}, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def up(
    shares: Annotated[str, typer.Option("--shares", help="Shares to offer (default: cpu:1, cpu:2, cpu:4 ...).")] = "",
    state: options.State = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show the stack on a page, as 'fractune dashboard' does.")
    ] = False,
    as_json: options.Json = False,
    *,
    serving: options.Serving,
) -> None:
    """Run the whole stack on this machine until stopped, for other clients."""
    offered = with_kernel_shares(share_names(shares or default_shares()))
    stack_options = StackOptions(
        state or default_state_dir(),
        shares=offered,
        compile=True,
        search=True,
        resume=True,
        **serving.parsed(),
    )
    if dashboard:
        require("web", "starlette", "uvicorn", "jinja2", "multipart")
    with running_stack(stack_options) as stack, _dashboard(stack_options.state, wanted=dashboard):
        measurers = _measurers(stack)
        if as_json:
            ready = {"event": "ready", "address": stack.address, "shares": list(offered), "measurers": measurers}
            typer.echo(json.dumps(ready))
        else:
            offers = (f"{share} ({measurers[share]} measurers)" if measurers[share] > 1 else share for share in offered)
            typer.echo(f"serving at {stack.address} with {', '.join(offers)}; Ctrl-C stops it")
        while (failure := stack.failure(timeout_s=1.0)) is None:
            pass
        raise failure
