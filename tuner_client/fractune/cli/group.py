"""A group whose help lists each command under its heading, with an uncut summary."""

from __future__ import annotations

import signal
from typing import Any

from typer.core import TyperGroup

from fractune.cli.ending.stopped import Stopped

_WHOLE = 10_000
"""largest length of a summary in characters"""


class Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """As usual, but Ctrl-C is no mere exit code, so that `main` can say what became of the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            stopped = Stopped(signal.SIGINT)
            stopped.__notes__ = getattr(stop, "__notes__", [])
            raise stopped from stop

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        headings: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            if not command.hidden:
                heading = getattr(command, "rich_help_panel", None) or "Commands"
                headings.setdefault(heading, []).append((name, command.get_short_help_str(_WHOLE)))
        for heading, commands in headings.items():
            with formatter.section(heading):
                formatter.write_dl(commands)
