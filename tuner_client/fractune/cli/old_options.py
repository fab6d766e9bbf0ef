"""Names of options: former ones still work but are not shown, and errors name options, not arguments of Python."""

from __future__ import annotations

import copy
import re
from itertools import takewhile
from typing import Any

from typer.core import TyperCommand

from fractune.arguments import command_line
from fractune_core.errors import BadRequest, FractuneError

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
        for old, new in self._aliases().items():
            alias = copy.copy(options[new])
            alias.opts = [old]
            alias.add_to_parser(parser, ctx)
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As usual. Raises BadRequest for an option that is given by both of its names."""
        given = {each.partition("=")[0] for each in takewhile(lambda each: each != "--", args)}
        for old, new in self._aliases().items():
            if {old, new} <= given:
                raise BadRequest(f"{old} is the former name of {new}; give {new} alone")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """As usual, but errors name the options of the command, not the arguments of the functions behind it."""
        try:
            with command_line():
                return super().invoke(ctx)
        except FractuneError as error:
            error.args = (self._with_options(str(error)),)
            raise

    def _aliases(self) -> dict[str, str]:
        """The new names of the command's options, by their former names."""
        names = {name for param in self.params for name in param.opts}
        return {old: new for old, new in NEW_NAMES.items() if new in names and old not in names}

    def _with_options(self, text: str) -> str:
        """`min_gain` becomes `--min-gain` anywhere; a name of one word only where the text is about its value."""
        for param in self.params:
            name, option = param.name or "", next((each for each in param.opts if each.startswith("--")), "")
            if option:
                place = rf"(?<![\w-]){name}(?![\w-])" if "_" in name else rf"^{name}(?= is |: | ')"
                text = re.sub(place, option, text)
        return text
