"""`mps:P`: at most P percent of a GPU's SMs. A cap and no reservation: two such clients may sit on the same SM."""

from __future__ import annotations

import os

from fractune_core.cuda.environment import MPS_PERCENTAGE
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import GrantedShare
from fractune_workers.confinement.under_mps import UnderMps

_STEP_SMS = 2
"""MPS grants SMs in steps of so many"""


class MpsConfinement(UnderMps):
    """An `mps:P` share."""

    def probe(self) -> None:
        allowed = os.environ.get(MPS_PERCENTAGE, "100")
        if not _is_at_least(allowed, self._percent):
            raise ShareUnavailable(
                f"share '{self.share}': the environment has {MPS_PERCENTAGE}='{allowed}'; unset it, or ask for a "
                "share that is no larger"
            )
        super().probe()

    def verify(self) -> GrantedShare:
        """The SMs that CUDA shows this process, once a kernel has met no others."""
        shown, met = self._seen_sms()
        self._agree(shown)
        if not shown - _STEP_SMS <= met <= shown:
            raise ShareUnavailable(
                f"share '{self.share}' cannot be verified: CUDA shows {shown} SMs, and a kernel ran on {met}; end what "
                "else runs on this GPU, and start the worker again"
            )
        return self._granted(shown, reserved=False)

    @property
    def _percent(self) -> int:
        return int(self.share.size)

    def _share_needs(self) -> dict[str, str]:
        return {MPS_PERCENTAGE: str(self._percent)}

    def _agree(self, shown: int) -> None:
        """Raise ShareUnavailable unless the grant is the request, rounded by one step at most."""
        total = self.gpu.sms
        if self._percent < 100 and shown >= total:
            raise ShareUnavailable(
                f"share '{self.share}' is not in force: all {total} SMs can be used; see that nothing changes "
                f"{MPS_PERCENTAGE} in the worker's environment"
            )
        asked = total * self._percent / 100
        if abs(shown - asked) > _STEP_SMS:
            raise ShareUnavailable(
                f"share '{self.share}' is {asked:.1f} of {total} SMs, and MPS grants {shown}: more than a step of "
                f"{_STEP_SMS} off; ask for mps:{max(1, round(100 * shown / total))}, or raise the daemon's own limit "
                "(`echo get_default_active_thread_percentage | nvidia-cuda-mps-control` tells it)"
            )


def _is_at_least(text: str, percent: int) -> bool:
    try:
        return float(text) >= percent
    except ValueError:
        return False
