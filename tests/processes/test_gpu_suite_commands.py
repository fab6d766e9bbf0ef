"""The commands that the suite for a GPU gives: a machine without one refuses each for its share, and for that alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.gpu import against_stock, faults, look, matrix, noise, one_operator, shares
from benchmarks.gpu.part import PartFailed, Slice
from benchmarks.gpu.table import contest
from benchmarks.gpu.table import part as first_table
from benchmarks.gpu.table.operations import OPERATIONS
from benchmarks.gpu.table.simulated import rehearsed
from benchmarks.support.models import Model, heavy, operators_of
from fractune_workers.builder_process import BuilderProcess
from fractune_workers.children.tvm_api.target import parse_target
from tests.support.hardware.simulated_mps import H200
from tests.support.real_bundle import compile_small

pytestmark = [
    pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="there is an NVIDIA driver here"),
    pytest.mark.timeout(240),
    pytest.mark.long,
]
REFUSED = "NVIDIA"


@pytest.fixture
def given(tmp_path: Path) -> Slice:
    (tmp_path / "out").mkdir()
    return Slice(200.0, time.monotonic() + 200.0, H200, tmp_path / "out", tmp_path)


def test_shares_tells_nothing_of_a_gpu_that_is_not_there(given: Slice) -> None:
    with pytest.raises(PartFailed, match=f"prints nothing about {H200.uuid}.*{REFUSED}"):
        shares.run(given)


def test_noise_is_refused_for_both_shares(given: Slice) -> None:
    found = noise.run(given)
    assert found.line == ""
    assert len(found.faults) == 2
    assert all("fractune noise ended with code 4" in fault and REFUSED in fault for fault in found.faults)


def test_stock_has_nothing_to_be_compared_on(given: Slice) -> None:
    with pytest.raises(PartFailed, match=f"vs_stock: .*{REFUSED}"):
        against_stock.run(given)


def test_a_cell_of_the_matrix_is_refused(given: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_MODELS", {"squeezenet": 0})  # a stack of processes for each model and mechanism
    monkeypatch.setattr(matrix, "mechanisms", lambda _gpu: {"mps": ("mps:25",), "green": ("green:32", "green:64")})
    found = matrix.run(given)
    (fault,) = found.faults
    assert found.line.startswith("skipped: mps (")
    assert fault.startswith("squeezenet by green: fractune tune ended with code 4")
    assert REFUSED in fault


def test_a_look_is_kept_though_cuda_cannot_start(given: Slice) -> None:
    with pytest.raises(PartFailed, match="starting CUDA ended with code 1"):
        look.run(given)
    assert "==== cat /proc/driver/nvidia/version" in (given.out / "look.txt").read_text()


def test_one_operator_is_refused_at_every_share(given: Slice) -> None:
    found = one_operator.run(given)
    assert found.faults == ("no share could be had",)
    assert found.line.count("skipped: ") == 3


@pytest.mark.alone
def test_one_operator_is_tuned_and_its_output_is_numpys(given: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_operator, "_SIZE", 128)
    monkeypatch.setattr(one_operator, "_MOST_TRIALS", 8)
    found = one_operator.tuned_at(given, "cpu:1", 60.0)
    assert not one_operator.is_wrong(found)
    assert 0 < sum(found["trials"].values()) <= 8  # a product that is near its roof gets no more of them
    assert 0 < found["operator_s"] <= found["untuned_s"]


def test_there_is_no_storm(given: Slice) -> None:
    with pytest.raises(PartFailed, match=f"the storm ended with code 1: .*{REFUSED}"):
        faults.run(given)


def test_the_first_table_has_no_share(given: Slice) -> None:
    with pytest.raises(PartFailed, match=REFUSED):
        first_table.run(given)


@pytest.mark.parametrize(
    ("number", "dtype", "is_last"), [(0, "float16", False), (1, "float16", True), (1, "float32", False)]
)
def test_peers_know_the_layout_of_an_operator_on_a_gpu(
    number: int, dtype: str, tmp_path: Path, *, is_last: bool
) -> None:
    operation = OPERATIONS[number]
    path = operation.save(tmp_path / "operation.onnx", dtype)
    (heaviest,) = heavy(operators_of(Model(operation.name, path), "cuda:sm_90"), ("conv2d", "matmul"), 2)
    builder = BuilderProcess()
    try:
        described = builder.learn(heaviest.workload_hash, str(parse_target("cuda:sm_90", 1)), lambda: heaviest.workload)
    finally:
        builder.stop()
    assert operation.is_channels_last([shape for _, _, shape, *_ in described]) == is_last


@pytest.mark.alone
def test_the_first_table_is_made_on_a_simulated_gpu(tmp_path: Path) -> None:
    found = rehearsed(tmp_path)
    assert found.faults == ()
    assert list(found.data["rows"]) == ["simulated_product float16", "simulated_convolution float16"]
    for row in found.data["rows"].values():
        sides = row["shares"]["cpu:1"]["contestants"]
        assert sides["simulated"]["by"] == "simulated by NumPy"
        assert all(each["status"] == "right" and len(each["run_secs"]) == 9 for each in sides.values())


def test_a_whole_model_meets_no_peer_without_a_gpu(tmp_path: Path) -> None:
    model, bundle = compile_small(tmp_path)
    found = contest.whole(["cpu:1"], str(bundle), str(model))["cpu:1"]["contestants"]
    assert found["fractune"]["status"] == "right"
    assert len(found["fractune"]["run_secs"]) == 9
    causes = {name: each["cause"] for name, each in found.items() if each["status"] == "missing"}
    assert sorted(causes) == ["onnxruntime", "torch.compile"]
    assert "onnxruntime-gpu" in causes["onnxruntime"]
    assert "PyTorch" in causes["torch.compile"]
