"""Warnings at the line of a program that calls this package."""

from __future__ import annotations

import inspect
import warnings

from fractune.inference.choosing.variants import VariantChoice

_PACKAGE = f"{__name__.partition('.')[0]}."


def warn_if_untuned(bundle_name: str, choice: VariantChoice) -> None:
    """A RuntimeWarning, if no measurement speaks for the untuned variant."""
    if choice.is_last_resort:
        warn_caller(
            f"{bundle_name} runs its untuned variant, which may be far slower than a tuned one: {choice.reason}"
        )


def warn_caller(message: str) -> None:
    """A RuntimeWarning at the innermost line outside this package."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)
