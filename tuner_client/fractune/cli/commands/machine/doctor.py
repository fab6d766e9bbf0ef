"""`fractune doctor`: the uses that this machine is ready for, and the missing parts of the others."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from fractune.cli import options
from fractune.local.doctor import Use, examine


class UseName(StrEnum):
    RUN = "run"
    TUNE = "tune"
    LIMITS = "limits"
    CUDA_BUILDS = "cuda-builds"
    GPU = "gpu"


def doctor(
    uses: Annotated[
        list[UseName] | None,
        typer.Option("--for", help="Exit with 1 unless this machine is ready for it; repeatable."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Report what this machine is ready for, and how to install the rest."""
    names = [name.value for name in uses or []]
    examined = [use for use in examine() if not names or use.name in names]
    for use in examined:
        typer.echo(json.dumps(use.to_json()) if as_json else _text(use))
    if not as_json:
        typer.echo("+ found, - missing, o missing but not required")
    ready = [use.ready for use in examined]
    if not (all(ready) if names else any(ready)):
        raise typer.Exit(1)


def _text(use: Use) -> str:
    lines = [f"{use.title}: {'ready' if use.ready else 'not ready'}"]
    for finding in use.findings:
        mark = "+" if finding.found else ("o" if finding.optional else "-")
        lines.append(f"  {mark} {finding.what}: {finding.found or finding.how}")
    return "\n".join(lines)
