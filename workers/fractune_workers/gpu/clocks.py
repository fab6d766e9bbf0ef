"""The clock of the GPU that this process works on, for the supervisor of measurements: read by NVML, without CUDA."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property

from fractune_core.errors import ShareUnavailable
from fractune_workers.gpu.nvml import Clocks, Nvml, open_nvml, visible_gpu

UNKNOWN_CLOCKS = Clocks(sm_mhz=0, throttled_ns={})

_log = logging.getLogger(__name__)


class GpuClock:
    def __init__(self, nvml: Callable[[], Nvml] = open_nvml) -> None:
        self._open_nvml = nvml
        self._has_complained = False

    def read(self) -> Clocks:
        """Of the whole GPU; UNKNOWN_CLOCKS where NVML fails: the measurement is as good without."""
        try:
            return self._nvml.clocks(self._uuid)
        except ShareUnavailable as error:
            if not self._has_complained:
                _log.warning("records will lack the clock of the GPU: %s", error)
            self._has_complained = True
            return UNKNOWN_CLOCKS

    @cached_property
    def _nvml(self) -> Nvml:
        return self._open_nvml()

    @cached_property
    def _uuid(self) -> str:
        return visible_gpu(self._nvml.gpus()).uuid
