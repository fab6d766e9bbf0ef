"""Sessions on shares of a GPU that does not exist: nothing runs, and a candidate's time is made up from its code.

Stand-ins are subclasses of what they stand in for, so that mypy sees a method that takes other arguments.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fractune_core.analysis.noise import DEFAULT_MARGIN
from fractune_core.errors import ShareUnavailable
from fractune_core.records import Status, TimingPolicy
from fractune_core.shares import Device, GrantedShare, Share
from fractune_core.targets import target_key
from fractune_workers.children.tvm_api.cuda_target import gpu_target
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession, Outcome

SMS = 132
MEMORY_BYTES = 80 << 30
TARGET = target_key(json.dumps(gpu_target("sm_90")))


@dataclass
class SimulatedGpuMachine:
    """A machine with one GPU: `session` stands in for `fractune_workers.measuring.session.MeasurementSession`."""

    units: dict[str, int] = field(default_factory=lambda: {"mps:25": 32, "mps:34": 44, "green:32": 32, "full": SMS})
    """SMs granted, by share"""
    instances: int = 0
    """MIG instances of 16 SMs"""
    uuid: str = "GPU-00000000-cdf7-e667-3644-bf5b4f46ed65"
    timed: list[tuple[int, str]] = field(default_factory=list)
    """what was timed: number of the session, candidate"""
    lock_dir: Path | None = None
    claims: list[Any] = field(default_factory=list)
    """what lay in the GPU's folder of lock files whenever something was timed"""
    sessions: int = 0
    stopped: int = 0

    def session(self, share: Share, cores: Sequence[int], _margin: float = DEFAULT_MARGIN) -> SimulatedSession:
        taken = self.sessions - self.stopped
        if share.mechanism == "mig" and taken >= self.instances:
            raise ShareUnavailable(f"share '{share}': other workers hold every instance of that kind ({taken})")
        self.sessions += 1
        return SimulatedSession(self, self.sessions - 1, share, list(cores))


class SimulatedSession(MeasurementSession):
    fault_epochs, generation, loss_allowed = 0, 1, 1.0

    def __init__(self, machine: SimulatedGpuMachine, number: int, share: Share, cores: list[int]) -> None:
        self._machine = machine
        self._number = number
        self.share = share
        self.cores = cores
        self.device_info = {}

    @property
    def gpu_uuid(self) -> str:
        return self._machine.uuid

    def handshake(self) -> None:
        mig = self.share.mechanism == "mig"
        units = 16 if mig else self._machine.units[str(self.share)]
        self.device_info = {
            "device": Device("cuda", "sm_90", SMS, 80, 50 << 10, "a simulated GPU").to_json(),
            "granted": GrantedShare(str(self.share), units, SMS, "sm", MEMORY_BYTES, reserved=mig).to_json(),
            "target": TARGET,
            "versions": {},
        }

    def log_lacking(self) -> None:
        pass

    def serve(self, tenant: str) -> None:
        pass

    def anchor(self) -> float:
        return 1.0

    anchor_before = anchor

    def timed(self, batch: ArtifactBatch, policy: TimingPolicy) -> dict[str, Outcome]:
        return {name: self._time(name, code, policy) for name, code in batch.codes.items()}

    def trials(
        self, batch: ArtifactBatch, best_s: float = math.inf, among: Sequence[str] | None = None
    ) -> dict[str, Outcome]:
        del best_s, among
        return self.timed(batch, TimingPolicy("race", 1, 3, 1.0))

    def stop(self) -> None:
        self._machine.stopped += 1

    def _time(self, name: str, code: bytes, policy: TimingPolicy) -> Outcome:
        self._machine.timed.append((self._number, name))
        if self._machine.lock_dir is not None:
            found = (self._machine.lock_dir / f"gpu-{self.gpu_uuid}").glob("claim-*")
            self._machine.claims.append([json.loads(path.read_text().splitlines()[0]) for path in found])
        return Outcome(Status.OK, run_secs=(made_up_s(code),) * policy.repeats, policy=policy)


def made_up_s(code: bytes) -> float:
    """From 10 us to 1 ms, the same for the same code."""
    return 1e-5 * (1 + zlib.crc32(code) % 100)
