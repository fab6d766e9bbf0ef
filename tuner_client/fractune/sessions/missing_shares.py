"""Which shares a running stack of this machine lacks for a job, and how to start the stack with them."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from fractune.server.rpc import RpcClient
from fractune_core.errors import FractuneError, ShareUnavailable


@contextlib.contextmanager
def naming_missing_shares(folder: Path, address: str, wanted: Sequence[str]) -> Iterator[None]:
    """Let a refusal of shares name the stack that `fractune up` runs in `folder`, its shares, and the remedy."""
    try:
        yield
    except ShareUnavailable as error:
        remedy = _remedy(folder, address, wanted)
        if not remedy:
            raise
        raise ShareUnavailable(f"{error}. {remedy}") from error


def _remedy(folder: Path, address: str, wanted: Sequence[str]) -> str:
    """Empty if the stack lacks none of the shares, or does not answer."""
    try:
        with RpcClient(address) as client:
            held = sorted(client.measurers())
    except FractuneError:
        return ""
    missing = [share for share in wanted if share not in held]
    if not missing:
        return ""
    command = shlex.join(["fractune", "up", "--shares", ",".join([*held, *missing]), "--state", str(folder)])
    offered = f"workers for {', '.join(held)}" if held else "no measuring workers"
    return f"The stack of 'fractune up' in {folder} has {offered}. Stop it, then start it by: {command}"
