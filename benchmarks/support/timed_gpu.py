"""A GPU that does not exist. Its measurements sleep as long as they took on an H200."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.support.role_threads import Cores, Rates
from fractune_core.analysis.noise import DEFAULT_MARGIN
from fractune_core.records import TRIAL_POLICY
from fractune_core.shares import Share
from fractune_workers.measuring.session import ArtifactBatch, Outcome
from tests.support.hardware.simulated_session import SimulatedGpuMachine, SimulatedSession

RACE_S = 0.04
"""a candidate: 0.040 s at `mps:25` and 0.038 s at `full` (benchmarks/results/gpu/noise.json)"""
ANCHOR_S = {"mps:25": 0.02, "full": 0.01}
"""computed from data sheets, not measured"""
SLOWER = {1: 1.0, 2: 1.15, 3: 1.36, 4: 1.57}
"""how much longer each measurement takes with so many side by side, from the same file; three lie between"""


@dataclass
class TimedGpu(SimulatedGpuMachine):
    rates: Rates = field(default_factory=lambda: Rates(Cores(1)))
    measured: Counter[str] = field(default_factory=Counter)
    """candidates by share"""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: Counter[str] = Counter()

    def session(self, share: Share, cores: Sequence[int], _margin: float = DEFAULT_MARGIN, *_: Any) -> TimedSession:
        self.sessions += 1
        return TimedSession(self, self.sessions - 1, share, list(cores))

    def spend(self, share: str, secs: float) -> None:
        """Measure for so long. Raises RuntimeError if other measurers are there that must not be."""
        with self._lock:
            self._busy[share] += 1
            busy = +self._busy
        if len(busy) > 1:
            raise RuntimeError(f"side by side: {dict(busy)}")
        self.rates.measure(secs * SLOWER[busy[share]])
        with self._lock:
            self._busy[share] -= 1


class TimedSession(SimulatedSession):
    def __init__(self, gpu: TimedGpu, number: int, share: Share, cores: list[int]) -> None:
        super().__init__(gpu, number, share, cores)
        self._gpu = gpu

    def roof(self) -> None:
        pass

    def anchor(self) -> float:
        self._gpu.spend(str(self.share), ANCHOR_S[str(self.share)])
        return 1.0

    anchor_before = anchor

    def trials(
        self, batch: ArtifactBatch, best_s: float = math.inf, among: Sequence[str] | None = None
    ) -> dict[str, Outcome]:
        del best_s, among
        self._gpu.spend(str(self.share), RACE_S * len(batch.codes))
        self._gpu.measured[str(self.share)] += len(batch.codes)
        return self.timed(batch, TRIAL_POLICY)
