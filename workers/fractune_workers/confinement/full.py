"""`full`: a whole GPU, proved to be whole."""

from __future__ import annotations

from fractune_core.shares import GrantedShare
from fractune_workers.confinement.beside_mps import BesideMps


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
