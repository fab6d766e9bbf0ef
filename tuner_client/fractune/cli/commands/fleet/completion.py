"""`fractune completion`: scripts by which a shell completes commands and options."""

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print a shell's completion script.

    Bash and zsh: add `source <(fractune completion bash)` (or zsh) to ~/.bashrc (or ~/.zshrc). Fish: write it to
    ~/.config/fish/completions/fractune.fish.
    """
    typer.echo(get_completion_script(prog_name="fractune", complete_var="_FRACTUNE_COMPLETE", shell=shell.value))
