"""The MPS daemon of this process. CUDA looks for it when it starts, and runs without MPS where it finds none."""

from __future__ import annotations

import os

from fractune_core.cuda.environment import MPS_PERCENTAGE, MPS_PIPE_DIRECTORY, VISIBLE_DEVICES
from fractune_core.cuda.mps import kept_daemons
from fractune_core.shares import Share


def join_daemon(share: Share | None) -> None:
    """Have CUDA find the daemon that `fractune mps start` keeps, if this process needs MPS (for `share`, or for the
    percentage of its environment) and its environment names no daemon.
    """
    is_needed = share.mechanism == "mps" if share else bool(_percentage())
    if not is_needed or os.environ.get(MPS_PIPE_DIRECTORY):
        return
    first = os.environ.get(VISIBLE_DEVICES, "").partition(",")[0]
    found = [(uuid, pipes) for uuid, pipes in kept_daemons().items() if uuid.startswith(first)]
    if len(found) == 1:
        uuid, pipes = found[0]
        os.environ[MPS_PIPE_DIRECTORY], os.environ[VISIBLE_DEVICES] = str(pipes), uuid


def lost_percentage() -> str:
    """In a process without MPS: that the percentage of its environment has no effect, with a remedy. Empty if the
    environment has none.
    """
    percentage = _percentage()
    return f"{MPS_PERCENTAGE}={percentage} has no effect without MPS: {_remedy()}" if percentage else ""


def _percentage() -> str:
    """Empty if the environment limits nothing."""
    percentage = os.environ.get(MPS_PERCENTAGE, "")
    return "" if percentage == "100" else percentage


def _remedy() -> str:
    if pipes := os.environ.get(MPS_PIPE_DIRECTORY):
        return f"no daemon answers at {pipes} (`fractune mps status`)"
    if kept := kept_daemons():
        return f"set {VISIBLE_DEVICES} to the UUID of a GPU with a daemon, {' or '.join(kept)}"
    return "start a daemon by `fractune mps start`"
