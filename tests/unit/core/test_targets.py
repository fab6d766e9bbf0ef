"""Targets without TVM: cores are a CPU's, and machine code runs on one generation of GPUs."""

from __future__ import annotations

import json

import pytest

from fractune_core.targets import capability, runs_on, target_key, with_cores

CUDA = '{"kind": "cuda", "arch": "sm_90", "keys": ["cuda", "gpu"]}'


def test_a_gpu_has_no_cores() -> None:
    assert with_cores(CUDA, 4) == CUDA
    assert json.loads(with_cores('{"kind": "llvm"}', 4)) == {"kind": "llvm", "num-cores": 4}


def test_the_key_tells_fast_math_apart() -> None:
    fast = json.dumps({**json.loads(CUDA), "keys": ["cuda", "gpu", "fast-math"]})
    assert target_key(fast) != target_key(CUDA)


@pytest.mark.parametrize(
    ("arch", "number"),
    [("sm_90", 90), ("sm_90a", 90), ("sm_100f", 100), ("sm_120", 120), ("90", None), ("sm_9", None), ("znver3", None)],
)
def test_the_capability_is_read_from_the_architecture(arch: str, number: int | None) -> None:
    assert capability(arch) == number


@pytest.mark.parametrize(
    ("arch", "isa"),
    [
        ("sm_90", "sm_90"),
        ("sm_90a", "sm_90"),
        ("sm_80", "sm_86"),
        ("sm_100", "sm_103"),
        ("sm_100f", "sm_103"),
    ],
)
def test_machine_code_runs_on_its_own_generation(arch: str, isa: str) -> None:
    assert runs_on(arch, isa)


@pytest.mark.parametrize(
    ("arch", "isa"),
    [
        ("sm_86", "sm_80"),
        ("sm_80", "sm_90"),
        ("sm_100a", "sm_103"),
        ("sm_120", "sm_100"),
        ("sm_90", "znver3"),
        ("", "sm_90"),
    ],
)
def test_and_on_no_other(arch: str, isa: str) -> None:
    assert not runs_on(arch, isa)
