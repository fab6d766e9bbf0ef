"""One case for each mechanism that can confine a process: what `test_confinement_contract` runs its tests over.

A case is a share, how to confine to it, and the machine it needs: this one, or something that stands in for a GPU.
A new mechanism adds one entry to CASES, and one to GPU_CASES for the tests on a real GPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.simulated_mps import OneGpu, installed_program, open_simulated_driver
from tuner_core.shares import Share
from workers.confinement import Confinement, confinement_for
from workers.confinement.mps import MpsConfinement
from workers.confinement.mps_sm import MpsSmConfinement
from workers.gpu.mps_control import PROGRAM

Machine = Callable[[], AbstractContextManager[dict[str, str]]]
"""Sets up what a case needs, and gives environment variables for its processes"""


@dataclass(frozen=True)
class Case:
    share: str
    refused: str
    """a share of this mechanism that the machine cannot give; empty where there is only the one share"""
    unit: str
    reserved: bool
    machine: Machine
    confinement: Callable[[Share], Confinement] = confinement_for
    """builds it the same way in the supervisor and in the confined process"""


def this_machine() -> AbstractContextManager[dict[str, str]]:
    return contextlib.nullcontext({})


@contextlib.contextmanager
def simulated_mps() -> Iterator[dict[str, str]]:
    with installed_program() as folder:
        yield {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


@contextlib.contextmanager
def real_mps(oldest_driver: int) -> Iterator[dict[str, str]]:
    import pytest  # not in every confined process, which it would make start four times as slowly

    version = Path("/proc/driver/nvidia/version")
    if not version.exists() or shutil.which(PROGRAM) is None:
        pytest.skip(f"no NVIDIA GPU, or no {PROGRAM}")
    found = re.search(r" (\d{3})\.\d+", version.read_text())
    if found is None or int(found[1]) < oldest_driver:
        pytest.skip(f"needs an NVIDIA driver {oldest_driver} or newer")
    yield {}


CASES = {
    "cpu": Case("cpu:1", "cpu:9999", "core", reserved=False, machine=this_machine),
    "mps": Case(
        "mps:25",
        "mps:1",
        "sm",
        reserved=False,
        machine=simulated_mps,
        confinement=lambda share: MpsConfinement(share, nvml=OneGpu, driver=open_simulated_driver),
    ),
    "mps-sm": Case(
        "mps-sm:4",
        "mps-sm:16",
        "sm",
        reserved=True,
        machine=simulated_mps,
        confinement=lambda share: MpsSmConfinement(share, nvml=OneGpu, driver=open_simulated_driver),
    ),
}

GPU_CASES = {
    "mps on a GPU": Case("mps:50", "mps:1", "sm", reserved=False, machine=lambda: real_mps(580)),
    "mps-sm on a GPU": Case("mps-sm:2", "mps-sm:999", "sm", reserved=True, machine=lambda: real_mps(590)),
}

ALL_CASES = CASES | GPU_CASES
