"""The mark of times near the launch floor of a GPU's share, and the note below the table that explains it."""

from __future__ import annotations

from collections.abc import Iterable

from fractune.text.text import time_text
from fractune_core.analysis.roofline import LAUNCH_BOUND

_MARK = " *"
LAUNCH_NOTE = (
    f"* at most {LAUNCH_BOUND:g} times the launch floor of its share, the time of an empty kernel: the host's "
    "launches are timed, so shares tie; a larger batch shows the kernels."
)


def marked_time(secs: float | None, *, launch_bound: bool | None) -> str:
    """`3.30 us *` near the launch floor, else `3.30 us`."""
    return f"{time_text(secs)}{_MARK if launch_bound else ''}"


def launch_notes(launch_bound: Iterable[bool | None]) -> tuple[str, ...]:
    """The note, if any time has the mark."""
    return (LAUNCH_NOTE,) if any(launch_bound) else ()
