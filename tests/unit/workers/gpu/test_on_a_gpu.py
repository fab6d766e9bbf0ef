"""On a real GPU: every share that it shares without MPS holds what it promises, and NVML and CUDA agree about it."""

import pytest

from fractune_core.errors import ShareUnavailable
from fractune_workers.gpu.nvml import Nvml, open_nvml
from fractune_workers.inventory.shares import NOT_PROVED, PROOF_FAILED, machine_shares

pytestmark = pytest.mark.gpu
MECHANISMS = {"full", "green", "mig"}


@pytest.fixture
def nvml() -> Nvml:
    try:
        found = open_nvml()
        if found.gpus():
            return found
    except ShareUnavailable as error:
        pytest.skip(str(error))
    pytest.skip("the driver sees no GPU")


def test_every_share_is_proved(nvml: Nvml) -> None:
    _, *gpus = machine_shares(prove=True)
    assert [device.uuid for device in gpus] == [gpu.uuid for gpu in nvml.gpus()]
    for device in gpus:
        shares = [each for each in device.shares if each.share.partition(":")[0] in MECHANISMS]
        assert [each.refusal for each in shares if each.proof == PROOF_FAILED] == []
        proved = [each for each in shares if each.proof != NOT_PROVED]
        assert proved
        assert {each.device_key.partition("-sm_")[0] for each in proved} == {"cuda"}
        assert len({each.device_key for each in proved}) == 1


def test_clocks_can_be_read(nvml: Nvml) -> None:
    for gpu in nvml.gpus():
        clocks = nvml.clocks(gpu.uuid)
        assert clocks.sm_mhz > 0
        assert clocks.throttled_ns
        assert all(ns >= 0 for ns in nvml.clocks(gpu.uuid).throttled_since(clocks).values())
