"""Options by their former names: they still work, and neither `--help` nor the shell's completion shows them."""

from __future__ import annotations

import copy
from typing import Any

from typer.core import TyperCommand

NEW_NAMES = {
    "--beside": "--compare",
    "--by": "--min-gain",
    "--gate": "--lock-dir",
    "--in-turn": "--interleaved",
    "--layout": "--mig-layout",
    "--layouts": "--partitioning",
    "--more": "--extra-trials",
    "--neighbour": "--co-runner",
    "--scope": "--namespace",
}
"""by the former name; a command without the new option has no alias, and may use the name for something else"""


class Command(TyperCommand):
    def make_parser(self, ctx: Any) -> Any:
        """The parser of the command's options, with the former names of options as well."""
        parser = super().make_parser(ctx)
        options = {name: param for param in self.get_params(ctx) for name in param.opts}
        for old, new in NEW_NAMES.items():
            if new in options and old not in options:
                alias = copy.copy(options[new])
                alias.opts = [old]
                alias.add_to_parser(parser, ctx)
        return parser
