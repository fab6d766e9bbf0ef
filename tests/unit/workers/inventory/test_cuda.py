"""What a machine has of CUDA, read from what its driver leaves in /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from fractune_workers.inventory.cuda import driver_version, gpu_names, look_for_cuda

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs)\nGCC version: 12\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"


@pytest.mark.parametrize(("text", "version"), [(OPEN, "580.65.06"), (CLOSED, "535.183.01"), ("something else", "")])
def test_the_version_of_the_kernel_module(tmp_path: Path, text: str, version: str) -> None:
    (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path) == version


def test_the_names_of_the_gpus(tmp_path: Path) -> None:
    for number, name in enumerate(["NVIDIA H200", "NVIDIA A30"]):
        folder = tmp_path / f"gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 64\n")
    assert gpu_names(tmp_path) == ["NVIDIA H200", "NVIDIA A30"]


def test_without_a_driver_there_is_nothing(tmp_path: Path) -> None:
    assert driver_version(tmp_path) == ""
    assert gpu_names(tmp_path) == []


def test_looking_does_not_open_a_gpu() -> None:
    here = look_for_cuda()
    assert bool(here.gpus) <= bool(here.driver)
    assert all(compiler.name for compiler in here.compilers)
    assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/nvidia" in line]
