"""Texts about the slots of a fused model."""

from __future__ import annotations

from collections.abc import Sequence

from fractune_core.errors import one_line


def slots_text(slots: Sequence[str | None]) -> str:
    """`2 of 3 filled: 0 a, 1 b, 2 empty; a run computes all 3`"""
    filled = sum(name is not None for name in slots)
    listed = ", ".join(f"{slot} {'empty' if name is None else name}" for slot, name in enumerate(slots))
    computes = "" if filled == len(slots) else f"; a run computes all {len(slots)}"
    return f"{filled} of {len(slots)} filled: {listed}{computes}"


def apart_text(apart: Sequence[str]) -> str:
    """The operators, one at least, that are called once for each slot."""
    called = "is called" if len(apart) == 1 else "are called"
    return f"{', '.join(map(one_line, apart))} {called} once for each slot"
