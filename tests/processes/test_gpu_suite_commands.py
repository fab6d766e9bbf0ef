"""The commands that the suite for a GPU gives: a machine without one refuses each for its share, and for that alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.gpu import against_stock, faults, matrix, noise, shares
from benchmarks.gpu.part import PartFailed, Slice
from tests.support.hardware.simulated_mps import H200

pytestmark = [
    pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="there is an NVIDIA driver here"),
    pytest.mark.timeout(240),
]
REFUSED = "NVIDIA"


@pytest.fixture
def given(tmp_path: Path) -> Slice:
    (tmp_path / "out").mkdir()
    return Slice(200.0, time.monotonic() + 200.0, H200, tmp_path / "out", tmp_path)


def test_shares_tells_nothing_of_a_gpu_that_is_not_there(given: Slice) -> None:
    with pytest.raises(PartFailed, match=f"tells nothing of {H200.uuid}.*{REFUSED}"):
        shares.run(given)


def test_noise_is_refused_for_both_shares(given: Slice) -> None:
    found = noise.run(given)
    assert found.line == ""
    assert len(found.faults) == 2
    assert all("fractune noise ended with code 4" in fault and REFUSED in fault for fault in found.faults)


def test_stock_has_nothing_to_be_compared_on(given: Slice) -> None:
    found = against_stock.run(given)
    assert found.line == ""
    assert [fault.partition(":")[0] for fault in found.faults] == ["full", "mps"]
    assert all("vs_stock: " in fault and REFUSED in fault for fault in found.faults)


def test_a_cell_of_the_matrix_is_refused(given: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_MODELS", ("squeezenet",))  # a stack of processes for each model and mechanism
    monkeypatch.setattr(matrix, "mechanisms", lambda _gpu: {"mps": ("mps:25", "mps:50")})
    found = matrix.run(given)
    (fault,) = found.faults
    assert found.line == ""
    assert fault.startswith("squeezenet by mps: fractune tune ended with code 4")
    assert REFUSED in fault


def test_there_is_no_storm(given: Slice) -> None:
    with pytest.raises(PartFailed, match=f"the storm ended with code 1: .*{REFUSED}"):
        faults.run(given)
