"""A child that does pieces of work side by side, as they are named."""

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fractune_core.errors import BadModel
from fractune_core.host.limits import addressed_bytes, memory_limit
from fractune_workers.children.compiling.variants import side_by_side


def _work(name: str) -> tuple[str, int]:
    if name == "refuse":
        raise BadModel("not this one")
    if name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "burn":
        os.kill(os.getpid(), signal.SIGXCPU)
    if name == "room":
        return name, memory_limit() or 0
    return name, os.getpid()


def _all(names: Sequence[str]) -> list[Any]:
    return side_by_side([partial(_work, name) for name in names])


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    return {"all": _all, "pid": os.getpid, "addressed": addressed_bytes}
