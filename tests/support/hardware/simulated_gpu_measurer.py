"""A measurer of a share of a GPU that does not exist. It opens what real builders and compilers made, as a real one
would; what that takes is made up.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fractune_core.analysis.at_load import AtLoad
from fractune_core.analysis.roofline import Roof
from fractune_core.files.bundles import Bundle
from fractune_core.fleet import redis_names
from fractune_core.fleet.blobs import get_signed_blob
from fractune_core.fleet.messages import MeasureWork, TimeModelWork, trial_of
from fractune_core.names import UNTUNED_VARIANT, WITH_ATTENTION, plain_variant
from fractune_core.records import UNTUNED, ArtifactItem, Kind, Status, TuningRecord, record_id
from fractune_core.shares import Device, GrantedShare
from fractune_workers.children.tvm_api.artifacts import unpack
from tests.support.hardware.cubins import cubin_arch, cubins_in
from tests.support.processes.fleet_simulated import SimulatedFleet, SimulatedWorker
from tests.support.processes.made_up import made_up_record
from tests.support.secret import SECRET

DEVICE = Device("cuda", "sm_90", 132, 140, 51_200, "a simulated H200")
SMS = {"mps:25": 33, "mps:50": 66, "green:32": 32, "full": 132}
ROUNDS = 11
"""of a model's times at load"""
LAUNCH_S = 2e-5
"""of an empty kernel at every share: on all SMs tuned kernels are as short as their launch, on a quarter never"""


class SimulatedGpuMeasurer(SimulatedWorker):
    device = DEVICE
    target = json.dumps({"kind": "cuda", "arch": DEVICE.isa})
    with_attention = 1.0
    """time of a variant with attention as one kernel, relative to the one without"""

    def granted(self) -> GrantedShare:
        return GrantedShare(self.share, SMS[self.share], DEVICE.units, "sm", 140 << 30, reserved=False)

    def _measure(self, work: MeasureWork) -> None:
        records = [self._record(work, item) for item in work.candidates]
        if work.round.validates and work.purpose is Kind.VALIDATION:
            records += [trial_of(work, record) for record in records if record.trace != UNTUNED]
        for record in records:
            event = {"event": "measured", "job": work.job, "round_id": work.round.id}
            self._send(work.reply, {**event, "record": record.to_json()})
        self._send_roof(work)

    def _time_model(self, work: TimeModelWork) -> None:
        bundle = Bundle(get_signed_blob(self.redis, SECRET, redis_names.bundle_blob(work.bundle)))
        names = [variant["name"] for variant in bundle.variants]
        for name in names:
            _check_cubins(*bundle.objects(name))
        event: dict[str, Any] = {"event": "model_timed", "job": work.job, "share": work.share}
        event |= {"granted": self.granted().to_json(), "others_cores": 0.0, "inside": None}
        secs = {name: self._model_secs(name) for name in names}
        event["run_secs"] = {name: [each] * 3 for name, each in secs.items()}
        event["max_error"] = dict.fromkeys(names, 0.0)
        event["at_load"] = [
            AtLoad(name, 1, (secs[name],) * ROUNDS, (secs[name],) * ROUNDS).to_json()
            for name in names
            if plain_variant(name) == self.share
        ]
        self._send(redis_names.SERVER_STREAM, event)

    def _model_secs(self, variant: str) -> float:
        usual = 2e-3 if variant == UNTUNED_VARIANT else 1e-3
        return usual * (self.with_attention if WITH_ATTENTION in variant else 1.0)

    def _record(self, work: MeasureWork, item: ArtifactItem) -> TuningRecord:
        secs = self._secs(work, item) if item.status is Status.OK else 0.0
        made_up = made_up_record(replace(work, share="cpu:1"), item.candidate, item.trace, item.status, self.name)
        return replace(
            made_up,
            record_id=record_id(work.round.id + "-validated" * work.round.validates, item.candidate, self.share),
            cause=item.cause,
            device=DEVICE,
            share=self.share,
            granted=self.granted(),
            run_secs=(secs,) * made_up.policy.repeats if secs else (),
            measured_at=time.time(),
            versions=item.versions,
        )

    def _secs(self, work: MeasureWork, item: ArtifactItem) -> float:
        """Seconds that follow from the machine code and the share, at least a launch; the untuned default is slow."""
        archive = get_signed_blob(self.redis, SECRET, redis_names.artifact_blob(work.round.id, item.candidate))
        code = unpack(archive)["device.o"]
        _check_cubins(code)
        draw = hashlib.sha256(code + self.share.encode()).digest()[0] / 255
        return max(LAUNCH_S, (9e-3 if item.trace == UNTUNED else 1e-3 + 2e-3 * draw) / SMS[self.share])


def _check_cubins(*objects: bytes) -> None:
    archs = {cubin_arch(cubin) for each in objects for cubin in cubins_in(each)}
    if archs != {DEVICE.isa}:
        raise AssertionError(f"machine code for {archs or 'no GPU'}, not for {DEVICE.isa}")


@contextmanager
def simulated_gpu_measurers(
    url: str, *shares: str, with_attention: Mapping[str, float] = MappingProxyType({})
) -> Iterator[SimulatedFleet]:
    """One for each share, in threads of this process."""
    fleet = SimulatedFleet(url)
    try:
        for share in shares:
            name = f"simulated-{share}".replace(":", "-")
            fleet.workers[name] = worker = SimulatedGpuMeasurer(url, "measure", name, share)
            worker.roof = Roof(0.0, 0.0, 0, LAUNCH_S)
            worker.with_attention = with_attention.get(share, 1.0)
            worker.start()
        yield fleet
    finally:
        fleet.stop()
