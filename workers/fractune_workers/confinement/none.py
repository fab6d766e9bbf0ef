"""`none`: a GPU as it is found. Nothing is checked and nothing is proved; its records say so and match no other share.

For a machine that confines in a way that fractune does not know. It is never chosen by default.
"""

from __future__ import annotations

from fractune_core.errors import ShareUnavailable
from fractune_core.shares import GrantedShare
from fractune_workers.confinement.beside_mps import BesideMps


class NoConfinement(BesideMps):
    """Whatever SMs CUDA shows this process."""

    @property
    def fault_domain(self) -> str | None:
        try:
            return super().fault_domain
        except ShareUnavailable:  # NVML cannot be asked, which must not matter here
            return "gpu"

    @property
    def gpu_uuid(self) -> str:
        try:
            return super().gpu_uuid
        except ShareUnavailable:
            return "gpu"

    def probe(self) -> None:
        """Anything will do."""

    def environment(self) -> dict[str, str]:
        return {}

    def enter(self) -> None:
        """The process stays as it was started."""

    def verify(self) -> GrantedShare:
        """The SMs that CUDA shows. Unproved: that a kernel stays on them, and that no other process uses them."""
        driver = self._process.driver
        shown = driver.sm_count()
        return GrantedShare(
            share=str(self.share),
            units=shown,
            units_total=max(shown, self._all_sms()),
            unit=self.share.kind.unit,
            memory_bytes=driver.memory_bytes(),
            reserved=False,
        )

    def _all_sms(self) -> int:
        """0 where NVML cannot be asked: that must not matter here."""
        try:
            return self._process.gpu.sms
        except ShareUnavailable:
            return 0
