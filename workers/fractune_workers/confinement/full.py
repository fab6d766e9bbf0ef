"""`full`: a whole GPU, proved to be whole."""

from fractune_core.errors import ShareUnavailable
from fractune_core.shares import GrantedShare
from fractune_workers.confinement.mps import BesideMps

# `none`: a GPU as it is found. Nothing is checked and nothing is proved; its records say so and match no other share.
#
# For a machine that confines in a way that fractune does not know. It is never chosen by default.


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


class FullConfinement(BesideMps):
    """All SMs of the GPU that this process sees first.

    They are reserved where the GPU's compute mode lets only one process in; else others may come and take part.
    """

    def probe(self) -> None:
        self._process.refuse_mig()
        self._process.refuse_mps_share()

    def enter(self) -> None:
        self.probe()
        self._process.check_start(self.environment())

    def verify(self) -> GrantedShare:
        """The GPU's SMs, once CUDA shows all of them and a kernel has run on all of them."""
        gpu = self._process.gpu
        self._process.check_start(self.environment())
        self._process.check_device(gpu.uuid)
        self._process.check_shown(gpu.sms)
        self._process.check_met(gpu.sms)
        # In that mode an MPS server may be the one process, and all of its clients share the GPU.
        return self._process.granted(gpu.sms, reserved=gpu.exclusive and not self._process.driver.is_mps_client())
