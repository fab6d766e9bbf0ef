"""Exit codes of commands that did not fail; those of errors stand with the errors (docs/exit-codes.md)."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import typer

GOAL_MISSED = 10
"""everything went well, and the goal was not reached"""
SHARES_SKIPPED = 13
"""the result is there, but for shares that could not be verified"""


def end_without(skipped_shares: Mapping[str, str]) -> None:
    """Name the shares without a result, each with its cause, on standard error, and exit with a code of their own.

    Return if there are none.
    """
    for share, cause in skipped_shares.items():
        print(f"fractune: {share} is skipped: {cause}", file=sys.stderr)
    if skipped_shares:
        raise typer.Exit(SHARES_SKIPPED)
