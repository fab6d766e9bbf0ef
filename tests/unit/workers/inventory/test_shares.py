"""What a machine offers: each share asked of its confinement, and proved in a child where that is wanted."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.confinement import confinement_for
from fractune_workers.confinement.base import Confinement
from fractune_workers.confinement.full import FullConfinement
from fractune_workers.confinement.green import GreenConfinement
from fractune_workers.confinement.mig import MigConfinement
from fractune_workers.gpu.nvml import NoNvidiaDriver, NvidiaMl
from fractune_workers.inventory import shares
from fractune_workers.inventory.shares import DeviceShares, ShareInfo, machine_shares
from tests.support.hardware.made_up_cgroups import left_by_a_killed_process, made_up_cgroups
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu, gpu_in_mig_mode
from tests.support.hardware.simulated_mps import H200
from tests.support.hardware.simulated_nvml import SimulatedNvml


@pytest.fixture
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def listed(monkeypatch: pytest.MonkeyPatch, claims: Path, *gpus: SimulatedGpu) -> list[DeviceShares]:
    """The offers of a machine with these GPUs, nothing proved."""
    nvml = NvidiaMl(SimulatedNvml(*gpus))

    def simulated(share: Share) -> Confinement:
        match share.mechanism:
            case "full":
                return FullConfinement(share, lambda: nvml)
            case "green":
                return GreenConfinement(share, lambda: nvml)
            case "mig":
                return MigConfinement(share, lambda: nvml, claims=claims)
        return confinement_for(share)

    monkeypatch.setattr(shares, "open_nvml", lambda: nvml)
    monkeypatch.setattr(shares, "confinement_for", simulated)
    return list(machine_shares(prove=False))


def had(device: DeviceShares, mechanism: str) -> dict[str, ShareInfo]:
    return {each.share: each for each in device.shares if each.share.startswith(mechanism) and not each.refusal}


def test_the_host_cpu_comes_first(monkeypatch: pytest.MonkeyPatch, claims: Path) -> None:
    (cpu,) = listed(monkeypatch, claims)
    most = len(os.sched_getaffinity(0))
    assert cpu.kind == "cpu"
    assert next(iter(had(cpu, "cpu"))) == "cpu:1"
    assert list(had(cpu, "cpu"))[-1] == f"cpu:{most}"
    assert all(each.proof == "not proved" and each.reserved is False for each in cpu.shares)


def test_cgroups_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claims: Path) -> None:
    cgroups = made_up_cgroups(tmp_path)
    left = left_by_a_killed_process(cgroups)
    monkeypatch.setattr(shares, "LimitCgroups", lambda: cgroups)
    listed(monkeypatch, claims)
    assert not left.exists()


def test_a_gpu_offers_itself_and_parts_of_it(monkeypatch: pytest.MonkeyPatch, claims: Path) -> None:
    _, gpu = listed(monkeypatch, claims, SimulatedGpu(MODELS["H200"]))
    assert "sm_90, 132 SMs, 140 GiB, driver 580.95.05" in gpu.label
    full = had(gpu, "full")["full"]
    assert (full.units, full.fraction, full.reserved) == (132, 1.0, False)
    assert [each.units for each in had(gpu, "green").values()] == [8, 16, 32, 64, 128]
    assert had(gpu, "mig") == {}
    assert any("not in MIG mode" in each.refusal for each in gpu.shares)


def test_a_gpu_of_unknown_size_has_no_share_of_nothing() -> None:
    assert shares._green_sizes(replace(H200, sms=0), prove=False) == [8]


def test_an_older_gpu_is_divided_more_finely(monkeypatch: pytest.MonkeyPatch, claims: Path) -> None:
    _, gpu = listed(monkeypatch, claims, SimulatedGpu(MODELS["A100-80"]))
    assert [each.units for each in had(gpu, "green").values()] == [4, 8, 16, 32, 64, 108]


def test_in_mig_mode_it_offers_its_instances_by_kind(monkeypatch: pytest.MonkeyPatch, claims: Path) -> None:
    _, gpu = listed(monkeypatch, claims, gpu_in_mig_mode("H200", ("3g", 4), ("1g", 0), ("1g", 1)))
    found = had(gpu, "mig")
    assert {share: (each.units, each.reserved, len(each.instances)) for share, each in found.items()} == {
        "mig:3g.71gb": (60, True, 1),
        "mig:1g.18gb": (16, True, 2),
    }
    assert had(gpu, "full") == had(gpu, "green") == {}


def test_every_gpu_is_looked_at_as_the_one_to_work_on(monkeypatch: pytest.MonkeyPatch, claims: Path) -> None:
    divided = gpu_in_mig_mode("H200", ("7g", 0), number=1)
    _, first, second = listed(monkeypatch, claims, SimulatedGpu(MODELS["H100"]), divided)
    assert (list(had(first, "full")), list(had(second, "mig"))) == (["full"], ["mig:7g.141gb"])
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_what_only_a_proof_can_tell_is_left_open(monkeypatch: pytest.MonkeyPatch, claims: Path) -> None:
    _, gpu = listed(monkeypatch, claims, SimulatedGpu(MODELS["H200"]))
    assert all(each.units is None and each.fraction is None for each in gpu.shares if each.share.startswith("mps"))


def test_without_a_driver_the_host_cpu_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> NvidiaMl:
        raise NoNvidiaDriver("none here")

    monkeypatch.setattr(shares, "open_nvml", no_driver)
    found: Iterator[DeviceShares] = machine_shares(prove=False)
    assert next(found).kind == "cpu"
    with pytest.raises(ShareUnavailable, match="none here"):
        next(found)


def test_a_named_share_of_the_cpu_is_expected_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "confinement_for", lambda _: SimpleNamespace(probe=lambda: None))
    (cpu,) = machine_shares([Share.parse("cpu:1"), Share.parse("cpu:500m..1500m@2")], prove=False)
    total = os.cpu_count() or 1
    assert [(each.units, each.units_total) for each in cpu.shares] == [(1, total), (1500, 1000 * total)]


def test_a_share_of_the_cpu_is_proved_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "open_nvml", lambda: NvidiaMl(SimulatedNvml()))
    (cpu,) = machine_shares(prove=True)
    assert [each.proof for each in cpu.shares] == ["affinity of every thread, cgroup quota"] * len(cpu.shares)
    assert [each.units for each in cpu.shares] == [int(each.share.partition(":")[2]) for each in cpu.shares]


def test_a_proof_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, claims: Path) -> None:
    """The child finds no GPU: what was expected is not what it gets."""
    expected = listed(monkeypatch, claims, SimulatedGpu(MODELS["H200"]))[1].shares[0]
    found = shares._proved(Share("full"), expected)
    if found.proof == "UUID, SM count, %smid":
        pytest.skip("this machine has an NVIDIA GPU")
    assert (found.proof, found.units) == ("proof failed", None)
    assert found.refusal
