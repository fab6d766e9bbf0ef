"""Why a kernel may come out faster than its roof."""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN_ABOVE = 1.0005
"""rounded to a tenth of a percent this is more than 100 %"""
_NOTE = (
    "More than 100 % of a roof: the kernel does fewer operations than the direct way, which the roof counts "
    "(Winograd), or the roof was measured too low, on a busy machine or by an older version."
)


def above_roof_notes(roof_parts: Iterable[float | None]) -> tuple[str, ...]:
    """A note that explains parts above 1; empty if there are none."""
    return (_NOTE,) if any(part is not None and part > _SHOWN_ABOVE for part in roof_parts) else ()
