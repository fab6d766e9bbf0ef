"""Notes on the column `of its roof`."""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN_ABOVE = 1.0005
"""rounded to a tenth of a percent this is more than 100 %"""
_ABOVE = (
    "More than 100 % of a roof: the kernel does fewer operations than the direct way, which the roof counts "
    "(Winograd), or the roof was measured too low, on a busy machine or by an older version."
)


def roof_notes(roof_parts: Iterable[float | None], unit: str, *, has_roof: bool) -> tuple[str, ...]:
    """A note that explains parts above 1, or an empty column; empty if there is nothing to explain.

    `unit` is that of the shares (`core` or `sm`). `has_roof`: whether the roof of any of them is known.
    """
    parts = list(roof_parts)
    known = [part for part in parts if part is not None]
    if parts and not known:
        return (f"No part of a roof is known: {_cause(unit, has_roof=has_roof)}.",)
    return (_ABOVE,) if any(part > _SHOWN_ABOVE for part in known) else ()


def _cause(unit: str, *, has_roof: bool) -> str:
    if unit == "sm":
        return "the roof of a GPU is not measured"
    if not has_roof:
        return "the log has no roof of these shares; a worker measures one with its first batch there"
    return "the operators may stay in the cache, which has no measured roof, or their arithmetic is in doubt"
