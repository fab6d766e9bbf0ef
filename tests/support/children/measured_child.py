"""The measurer's child as it is, and a look at its arguments."""

from collections.abc import Callable
from typing import Any

from fractune_workers.children.measuring.child import confined


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    child = confined(args)

    def arguments() -> list[Any]:
        """Their contents as nested lists, as the last kernel left them."""
        with child._processor.engaged():
            return [child._processor.read(arg).tolist() for arg in child._args]

    return {**child.methods(), "arguments": arguments}
