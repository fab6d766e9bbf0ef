"""What was compared of a bundle's outputs, for people and programs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from fractune_core.files.buckets import input_shapes
from fractune_core.files.bundles import Bundle
from fractune_core.files.checked import Checked, checked_of, not_checked

_UNKNOWN = not_checked("the bundle does not say; 'fractune compete' compares them")


def checks_of(path: Path) -> list[Checked]:
    """That of the bundle, or of each member of a joined one in their order. Raises BadBundle."""
    with contextlib.closing(Bundle(path)) as bundle:
        return [checked_of(each.manifest) or _UNKNOWN for each in bundle.members or [bundle]]


def checked_lines(path: Path) -> list[str]:
    """A line for the bundle, or for each member of a joined one. Raises BadBundle."""
    lines = [each.line for each in checks_of(path)]
    with contextlib.closing(Bundle(path)) as bundle:
        if "stages" in bundle.written:
            return [f"own part {number}: {line}" for number, line in enumerate(lines, 1)]
        shapes = [
            ", ".join(f"{name} {shape}" for name, shape in input_shapes(each.manifest).items())
            for each in bundle.members
        ]
    return [f"{shape}: {line}" for shape, line in zip(shapes, lines, strict=True)] if shapes else lines


def checked_json(path: Path) -> list[dict[str, Any]]:
    """As `checks_of`."""
    return [each.to_json() for each in checks_of(path)]
