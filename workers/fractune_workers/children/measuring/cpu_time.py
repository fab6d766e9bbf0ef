"""CPU time of kernels: that of all threads of this process while a kernel is timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from fractune_core.records import TimingPolicy
from fractune_workers.children.tvm_api.processor import Processor


class CpuMeter:
    """Adds up the CPU time and the wall time of all timings of one kernel."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._cpu_s = self._wall_s = 0.0

    def timed(self, timing: Callable[[], list[float]]) -> list[float]:
        """The result of `timing`."""
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        run_secs = timing()
        self._cpu_s += time.process_time() - cpu_s
        self._wall_s += time.perf_counter() - wall_s
        return run_secs

    def secs_of_one(self, run_secs: Sequence[float], policy: TimingPolicy) -> float | None:
        """CPU time of one call, for the reported ones of `run_secs`; None on a GPU, and where nothing was timed.

        A timing repeats the call without a pause, so the part that its threads were busy is that of the call.
        """
        if self._processor.is_gpu or not self._cpu_s:
            return None
        one_s = statistics.median(run_secs[policy.choosing :])
        # On a single core the run times are CPU times already, and the wall time has the interruptions.
        return one_s if self._processor.is_one_core else one_s * self._cpu_s / self._wall_s
