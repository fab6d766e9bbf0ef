"""Notes on the column `of its roof`."""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN_ABOVE = 1.0005
"""rounded to a tenth of a percent this is more than 100 %"""
_ABOVE = (
    "More than 100 % of a roof: the kernel does fewer operations than the direct way, which the roof counts "
    "(Winograd), or the roof was measured too low, on a busy machine or by an older version."
)


_UNKNOWN = (
    "No part of a roof is known: the roof of a GPU, and of small operators that stay in the cache, is not measured, "
    "and old logs have none."
)


def roof_notes(roof_parts: Iterable[float | None]) -> tuple[str, ...]:
    """A note that explains parts above 1, or an empty column; empty if there is nothing to explain."""
    parts = list(roof_parts)
    known = [part for part in parts if part is not None]
    if parts and not known:
        return (_UNKNOWN,)
    return (_ABOVE,) if any(part > _SHOWN_ABOVE for part in known) else ()
