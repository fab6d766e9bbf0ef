"""A share that is not one of MPS: alone with its faults, unless a daemon may take its process in."""

from __future__ import annotations

from pathlib import Path

import pytest

from fractune_core.cuda import MPS_PIPE_DIRECTORY
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.confinement.full import FullConfinement, NoConfinement
from fractune_workers.confinement.mps import BesideMps
from fractune_workers.gpu.nvml import NoNvidiaDriver, Nvml
from tests.support.hardware.confinement_cases import full_confinement, green_confinement
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu


def no_nvml() -> Nvml:
    raise NoNvidiaDriver("no NVIDIA driver")


@pytest.mark.parametrize("confinement", [full_confinement(Share("full")), green_confinement(Share("green", "32"))])
def test_faults_are_shared_where_a_daemon_may_be(
    confinement: BesideMps, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(MPS_PIPE_DIRECTORY, str(tmp_path / "none"))
    assert (confinement.fault_domain, confinement.is_active(), confinement.before_kill(1)) == (None, True, True)
    monkeypatch.setenv(MPS_PIPE_DIRECTORY, str(tmp_path))
    uuid = SimulatedGpu(MODELS["H200"]).uuid
    assert (confinement.fault_domain, confinement.is_active(), confinement.before_kill(1)) == (uuid, True, False)


def test_what_is_taken_as_it_is_found_needs_no_nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(MPS_PIPE_DIRECTORY, str(tmp_path))
    confinement = NoConfinement(Share("none"), nvml=no_nvml)
    assert confinement.fault_domain == confinement.gpu_uuid == "gpu"
    with pytest.raises(ShareUnavailable):
        str(FullConfinement(Share("full"), nvml=no_nvml).fault_domain)
