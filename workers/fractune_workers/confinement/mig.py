"""`mig:PROFILE` or `mig:UUID`: a MIG instance that exists. SMs, memory, cache and faults are its own.

fractune makes no instances unasked: that needs root and ends what runs on the GPU (`fractune shares --mig-layout`).
"""

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from fractune_core.cuda import VISIBLE_DEVICES
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import GrantedShare, Share
from fractune_workers.confinement.base import Confinement
from fractune_workers.cuda.driver import CudaDriver, open_driver
from fractune_workers.gpu.gpu_process import GpuProcess
from fractune_workers.gpu.nvml import MigInstance, Nvml, open_nvml
from fractune_workers.locks.core_locks import default_lock_dir
from fractune_workers.locks.flock import FolderLocks, Held


class MigConfinement(Confinement):
    """An instance of the GPU that this process sees first.

    `environment` claims one that no other worker of this user holds, until `leave` or the end of the process; the
    confined process finds its own in CUDA_VISIBLE_DEVICES. `claims`: folder of the lock files; None = the default.
    """

    def __init__(
        self,
        share: Share,
        nvml: Callable[[], Nvml] = open_nvml,
        driver: Callable[[], CudaDriver] = open_driver,
        claims: Path | None = None,
    ) -> None:
        self.share = share
        self._process = GpuProcess(share, nvml, driver)
        self._claims = claims or default_lock_dir()
        self._claimed: tuple[MigInstance, Held] | None = None

    def probe(self) -> None:
        if not self._fitting:
            raise ShareUnavailable(f"share '{self.share}': {self._why_none()}")

    @property
    def gpu_uuid(self) -> str:
        return self._process.gpu.uuid

    def environment(self) -> dict[str, str]:
        if self._claimed is None:
            self.probe()
            self._claimed = self._claim()
        if self._claimed is None:
            count = len(self._fitting)
            raise ShareUnavailable(
                f"share '{self.share}': other workers hold every instance of that kind ({count}); stop one of them, or "
                "create more instances (`fractune shares --mig-layout 3g+4g` tells how)"
            )
        return {VISIBLE_DEVICES: self._claimed[0].uuid}

    def enter(self) -> None:
        self._process.check_start({VISIBLE_DEVICES: self._own().uuid})

    def verify(self) -> GrantedShare:
        """The instance's SMs, once CUDA has shown just this instance and a kernel has run on all of it."""
        instance = self._own()
        self._process.check_device(instance.uuid)
        self._process.check_shown(instance.sms)
        self._process.check_met(instance.sms)
        return self._process.granted(instance.sms, reserved=True)

    def leave(self) -> None:
        if self._claimed is not None:
            self._claimed[1].close()
            self._claimed = None

    @cached_property
    def _fitting(self) -> list[MigInstance]:
        """Instances that the share may mean: of those that CUDA_VISIBLE_DEVICES names, or of all."""
        named = os.environ.get(VISIBLE_DEVICES, "").split(",")
        instances = self._process.gpu.instances
        instances = tuple(found for found in instances if found.uuid in named) or instances
        return [found for found in instances if self.share.size in {found.profile, found.uuid}]

    def _own(self) -> MigInstance:
        """The instance that this process was started for."""
        visible = os.environ.get(VISIBLE_DEVICES, "")
        for instance in self._fitting:
            if instance.uuid == visible:
                return instance
        raise ShareUnavailable(
            f"share '{self.share}': this process has {VISIBLE_DEVICES}='{visible}', which is no such instance; "
            "start it with the environment of its confinement"
        )

    def _claim(self) -> tuple[MigInstance, Held] | None:
        """An instance that no other worker holds, and the lock that makes it this worker's; None when there is none."""
        self._claims.mkdir(parents=True, exist_ok=True)
        locks = FolderLocks(self._claims)
        for instance in self._fitting:
            held = locks.take(instance.uuid)
            if held is not None:
                return instance, held
        return None

    def _why_none(self) -> str:
        gpu = self._process.gpu
        there = [f"mig:{found.profile} ({found.uuid})" for found in gpu.instances]
        if not there:
            lacks = "has no instance yet" if gpu.mig else "is not in MIG mode"
            return f"{gpu.name} {lacks}; `fractune shares --mig-layout 3g+4g` tells how to divide it"
        return f"{gpu.name} has no such instance; it has {', '.join(there)}"
