"""Targets: what this host can run, and what a user's text means."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tvm

from fractune_core.errors import BadModel, BadRequest
from fractune_workers.children.compiling.child import ingest
from fractune_workers.children.tvm_api.target import (
    default_target,
    host_cpu,
    host_device,
    missing_features,
    parse_target,
    target_key,
)
from tests.support.other_cpu import asks_the_host


@asks_the_host
def test_the_default_names_this_cpu_and_nothing_that_it_lacks() -> None:
    target = default_target(2)
    assert target.attrs["mcpu"] == host_cpu() != "generic"
    assert target.attrs["num-cores"] == 2
    assert missing_features(target) == []


@asks_the_host
def test_features_agree_with_the_kernel() -> None:
    """LLVM asks the processor; Linux tells in its own words what it lets through."""
    flags = set(
        next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    )
    features = {str(name) for name in tvm.get_global_func("target.llvm_get_cpu_features")(default_target(1))}
    for name in ("avx2", "fma", "avx512f", "avx512bw", "avx512vl", "f16c", "bmi2"):
        assert (name in features) == (name in flags), name


@asks_the_host
def test_a_feature_that_a_hypervisor_hides_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tvm.get_global_func

    def hiding(name: str) -> object:
        if name == "tvm.codegen.llvm.GetHostCPUFeatures":
            return lambda: {**{str(k): bool(v) for k, v in real(name)().items()}, "avx2": False}
        return real(name)

    named = parse_target(f"llvm -mcpu={host_cpu()}", 1)
    monkeypatch.setattr(tvm, "get_global_func", hiding)
    assert missing_features(named) == ["avx2"]
    assert "-avx2" in default_target(1).attrs["mattr"]
    assert missing_features(default_target(1)) == []


def test_the_key_leaves_out_the_cores_and_nothing_else() -> None:
    assert target_key(default_target(1)) == target_key(default_target(2))
    assert target_key(default_target(1)) != target_key(parse_target("llvm", 1))
    key = json.loads(target_key(parse_target("llvm -mcpu=skylake -mattr=+avx2,-fma -num-cores=4", 1)))
    assert key == {"keys": ["cpu"], "kind": "llvm", "mattr": ["+avx2", "-fma"], "mcpu": "skylake"}


@pytest.mark.parametrize("text", ["", "native", " host "])
def test_no_text_means_this_host(text: str) -> None:
    assert str(parse_target(text, 3)) == str(default_target(3))


@pytest.mark.parametrize("text", ["llvm -mcpu=skylake", '{"kind": "llvm", "mcpu": "skylake"}'])
def test_old_flags_and_json_mean_the_same(text: str) -> None:
    target = parse_target(text, 2)
    assert (target.attrs["mcpu"], target.attrs["num-cores"]) == ("skylake", 2)


def test_cores_in_the_text_win() -> None:
    assert parse_target('{"kind": "llvm", "num-cores": 8}', 2).attrs["num-cores"] == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nvidia/geforce-256", "is not defined"),
        ("apple/m1-gpu", "'metal' is neither a CPU (llvm) nor an NVIDIA GPU (cuda)"),
        ("raspberry-pi/4b-aarch64", "has no 'host'"),
        ('{"kind": "llvm", "mcpu": "pentium9"}', "LLVM knows no CPU 'pentium9'"),
        ('{"kind": "llvm", "cl-opt": ["-print-after-all:bool=1"]}', "a target of the kind llvm has no 'cl-opt'"),
    ],
)
def test_unknown_targets_are_refused(text: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_target(text, 1)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_target_of_another_architecture_lacks_everything() -> None:
    assert missing_features(parse_target("arm/rasp4b64", 1)) == ["aarch64"]


def test_the_host_as_a_device() -> None:
    device = host_device()
    assert (device.kind, device.isa, device.units) == ("cpu", host_cpu(), os.cpu_count())
    assert device.memory_gib >= 1
    assert device.label


def test_a_target_that_the_processor_cannot_run_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    foreign = "arm/rasp4b64"
    with pytest.raises(BadRequest, match=r"needs what this processor .* lacks: aarch64"):
        ingest(str(tmp_path / "none.onnx"), {}, foreign, host_cpu())
    # For a processor of another kind this host cannot tell: it goes on, to the model that is not there.
    with pytest.raises(BadModel):
        ingest(str(tmp_path / "none.onnx"), {}, foreign, "cortex-a72")
