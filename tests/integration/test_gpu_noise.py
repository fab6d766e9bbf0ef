"""`fractune noise` at a share of a GPU: real candidates, searched and built for it; only the GPU is simulated."""

from pathlib import Path
from typing import Any

import pytest

from fractune_core.records import TimingPolicy
from fractune_core.shares import Share
from fractune_workers.calibration import experiment
from fractune_workers.calibration.experiment import NoiseOptions, measure_noise
from fractune_workers.children.tvm_api.artifacts import unpack
from fractune_workers.cuda.compilers import find_compiler
from fractune_workers.measuring.session import ArtifactBatch, Outcome
from tests.support.hardware.cubins import cubin_arch, cubins_in
from tests.support.hardware.simulated_session import SimulatedGpuMachine, SimulatedSession
from tests.support.processes.cli_process import write_model

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no CUDA compiler here; `make setup` installs NVRTC"),
    pytest.mark.long,
]

CANDIDATES = 8


def test_candidates_are_made_for_the_gpu_and_as_many_measurers_tried_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = SimulatedGpuMachine(lock_dir=tmp_path)
    measured: dict[str, bytes] = {}

    class NotingSession(SimulatedSession):
        def timed(self, batch: ArtifactBatch, policy: TimingPolicy) -> dict[str, Outcome]:
            measured.update(batch.codes)
            return super().timed(batch, policy)

    monkeypatch.setattr("tests.support.hardware.simulated_session.SimulatedSession", NotingSession)
    monkeypatch.setattr(experiment, "MeasurementSession", machine.session)
    monkeypatch.setattr(experiment, "default_lock_dir", lambda: tmp_path)
    told: list[str] = []
    model = write_model(tmp_path / "m.onnx")  # the built-in convolution takes seconds to compile
    options = NoiseOptions(Share.parse("mps:25"), (1, 4, 8), candidates=CANDIDATES, model=model, only="conv")
    report: dict[str, Any] = measure_noise(options, told.append)
    assert {cubin_arch(found) for code in measured.values() for found in archived_cubins(code)} == {"sm_90"}
    assert len(measured) == CANDIDATES
    assert report["device"].startswith("cuda-sm_90-132u-")
    assert (report["granted"]["units"], report["granted"]["unit"]) == (32, "sm")
    names = [each["name"] for each in report["settings"]]
    crowds = ["trial, alone", "trial, alone, builds beside", "trial, 4 measurers", "trial, 4 measurers, builds beside"]
    assert names == ["validation, alone", "first, alone", "race, alone", *crowds]
    assert report["advice"]["measurers"] == 4  # the simulated GPU has no noise
    assert any(note.startswith("8 measurers were not tried: 32 of 132 SMs each") for note in report["notes"])
    assert all(len(claims) == 1 for claims in machine.claims)


def archived_cubins(code: bytes) -> list[bytes]:
    return [cubin for part in unpack(code).values() for cubin in cubins_in(part)]
