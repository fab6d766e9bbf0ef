"""Which measurements run side by side on one GPU, and how many measurers a share gets before the noise is measured.

Clients of MPS and MIG instances compute at the same time, each on its part. Between processes without
either the GPU switches in time: each would find the time slices of the others in its own times.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fractune_core.shares import GrantedShare, Share

MOST_BY_DEFAULT = 4
"""measurers at one share of a GPU where the noise was never measured"""

_SIDE_BY_SIDE = frozenset({"mps", "mps-sm", "mig"})
_MIG_SLICES = 7
_CHUNKS = 16
"""of SMs, on an H100; GPUs with more chunks are not filled by default"""


@dataclass(frozen=True)
class Claim:
    """What a measurement takes of a GPU while it runs."""

    exclusion_group: str = ""
    """claims of one group may be held at the same time, claims of two never; empty = this one only alone"""
    units: int = 0
    """SMs that are capped and not reserved: all that are claimed at the same time have to fit into the GPU"""
    units_total: int = 0

    def fits(self, held: Collection[Claim]) -> bool:
        """Whether it may be held beside `held`, which are held together."""
        if not held:
            return True
        if not self.exclusion_group or any(other.exclusion_group != self.exclusion_group for other in held):
            return False
        return self.units + sum(other.units for other in held) <= self.units_total


ALONE = Claim()
"""the whole GPU, whatever the share: what is published was measured alone"""


def claim_of(granted: GrantedShare) -> Claim:
    """What a measurement under the share takes. SMs that are reserved are its own, and need no room beside others'."""
    if granted.mechanism not in _SIDE_BY_SIDE:
        return ALONE
    return Claim(granted.mechanism, 0 if granted.reserved else granted.units, granted.units_total)


def default_measurers(share: Share) -> int:
    """As many as one GPU may have room for side by side, MOST_BY_DEFAULT at most; one where they run in turns.

    For a CPU share one. By the text of the share alone: where there is less room (fewer instances, larger chunks), the
    workers that start last find out.
    """
    room = 1
    if share.mechanism == "mps":
        room = 100 // int(share.size)
    elif share.mechanism == "mps-sm":
        room = _CHUNKS // int(share.size)
    elif share.mechanism == "mig" and not share.size.startswith("MIG-"):
        room = _MIG_SLICES // int(share.size[0])
    return max(1, min(room, MOST_BY_DEFAULT))
