"""`fractune doctor`: the uses that this machine is ready for, and the missing parts of the others."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.features.compete.compete import bundle_use
from fractune.local.doctor import Use, examine
from fractune_core.errors import BadRequest


class UseName(StrEnum):
    RUN = "run"
    TUNE = "tune"
    LIMITS = "limits"
    CUDA_BUILDS = "cuda-builds"
    GPU = "gpu"


def doctor(
    uses: Annotated[
        list[UseName] | None, typer.Option("--for", help="Exit with 1 unless this machine is ready for it; repeatable.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Exit with 1 unless this machine can run this bundle.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Report what this machine is ready for, and how to install the rest."""
    names = [name.value for name in uses or []]
    if bundle is not None and names:
        raise BadRequest("--bundle and --for exclude each other; give one of them")
    examined = [bundle_use(bundle)] if bundle else [use for use in examine() if not names or use.name in names]
    for use in examined:
        typer.echo(json.dumps(use.to_json()) if as_json else _text(use))
    if not as_json:
        typer.echo("+ found, - missing, o missing but not required")
    ready = [use.ready for use in examined]
    if not (all(ready) if names or bundle else any(ready)):
        raise typer.Exit(1)


def _text(use: Use) -> str:
    lines = [f"{use.title}: {'ready' if use.ready else 'not ready'}"]
    for finding in use.findings:
        mark = "+" if finding.found else ("o" if finding.optional else "-")
        lines.append(f"  {mark} {finding.what}: {finding.found or finding.how}")
    return "\n".join(lines)
