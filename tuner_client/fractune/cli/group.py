"""A group of commands whose help lists each command with its whole summary, under the heading of the command."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

_WHOLE = 10_000
"""characters of a summary: none is cut"""


class Group(TyperGroup):
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
