"""The warning of a program whose model runs untuned."""

from __future__ import annotations

import inspect
import warnings

from fractune.inference.choosing.variants import VariantChoice

_PACKAGE = f"{__name__.partition('.')[0]}."


def warn_if_untuned(bundle_name: str, choice: VariantChoice) -> None:
    """A RuntimeWarning, at the caller's line outside this package, if no measurement speaks for the untuned variant."""
    if not choice.is_last_resort:
        return
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    message = f"{bundle_name} runs its untuned variant, which may be far slower than a tuned one: {choice.reason}"
    warnings.warn(message, RuntimeWarning, stacklevel=level)
