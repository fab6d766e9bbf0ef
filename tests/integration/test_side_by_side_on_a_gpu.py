"""On a real GPU: measurers side by side under MPS, and one after the other where shares take turns."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fractune.local.noise_file import NOISE_FILE, load_noise
from fractune_workers.cuda.compilers import find_compiler
from tests.support.hardware.confinement_cases import real_gpu, real_mps
from tests.support.processes.cli_process import events, run_fractune

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_compiler() is None, reason="no CUDA compiler here; `make setup` installs NVRTC"),
]
OLDEST_DRIVER = 580


@pytest.fixture
def gpu() -> Iterator[None]:
    with real_gpu():
        yield


@pytest.fixture
def gpu_with_mps() -> Iterator[None]:
    with contextlib.ExitStack() as machine:
        machine.enter_context(real_gpu())
        machine.enter_context(real_mps(OLDEST_DRIVER))
        yield


def noise(state: Path, share: str, measurers: str) -> dict[str, Any]:
    options = ["--share", share, "--measurers", measurers, "--candidates", "8", "--json"]
    (report,) = events(run_fractune("noise", *options, "--state", str(state)))
    return report


@pytest.mark.usefixtures("gpu_with_mps")
def test_two_halves_measure_side_by_side(tmp_path: Path) -> None:
    report = noise(tmp_path, "mps:50", "1,2,4")
    settings = {each["name"]: each for each in report["settings"]}
    assert {each["failures"] for each in settings.values()} == {0}
    assert max(each["measurers"] for each in settings.values()) == 2
    assert any(note.startswith("4 measurers were not tried") for note in report["notes"])
    alone, both = settings["trial, alone"], settings["trial, 2 measurers"]
    assert both["secs_per_candidate"] < alone["secs_per_candidate"]
    assert load_noise(tmp_path / NOISE_FILE)[report["device"]]["mps:50"].measurers in {1, 2}


@pytest.mark.usefixtures("gpu")
def test_green_contexts_of_two_processes_take_turns(tmp_path: Path) -> None:
    report = noise(tmp_path, "green:32", "1,2")
    assert {each["measurers"] for each in report["settings"]} == {1}
    assert any("measurements do not run side by side" in note for note in report["notes"])
    assert report["advice"]["measurers"] == 1
