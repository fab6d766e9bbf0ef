"""One case for each mechanism that can confine a process: what `test_confinement_contract` runs its tests over.

A case is a share, how to confine to it, and the machine it needs: this one, or something that stands in for a GPU.
A new mechanism adds one entry to CASES, and one to GPU_CASES for the tests on a real GPU. A simulated share of the CPU
has its real one in CPU_CASES.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fractune_core.cuda import PROGRAM
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share
from fractune_workers.confinement import confinement_for
from fractune_workers.confinement.base import Confinement
from fractune_workers.confinement.cpu_limit import CpuLimitConfinement
from fractune_workers.confinement.full import FullConfinement
from fractune_workers.confinement.green import GreenConfinement
from fractune_workers.confinement.mig import MigConfinement
from fractune_workers.confinement.mps import MpsConfinement, MpsSmConfinement
from fractune_workers.gpu.nvml import NvidiaMl, open_nvml
from tests.support.hardware.made_up_cgroups import made_up_cgroups
from tests.support.hardware.simulated_cuda import simulated_driver
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu, gpu_in_mig_mode
from tests.support.hardware.simulated_mps import OneGpu, installed_program, open_simulated_driver
from tests.support.hardware.simulated_nvml import SimulatedNvml

Machine = Callable[[], AbstractContextManager[dict[str, str]]]
"""Sets up what a case needs, and gives environment variables for its processes"""
_CLAIMS = "SIMULATED_CLAIMS"
_CGROUPS = "MADE_UP_CGROUPS"


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
def made_up_host() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="cgroups-") as folder:
        yield {_CGROUPS: folder}


@contextlib.contextmanager
def real_cgroups() -> Iterator[dict[str, str]]:
    """This process is in a cgroup that takes precedence, since a proof needs CPU time."""
    from tests.support.hardware.real_cgroup import capped_cgroup  # imports pytest, as for MPS

    with capped_cgroup(cores=None) as cgroup, cgroup.joined():
        yield {}


@contextlib.contextmanager
def simulated_gpu() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="claims-") as folder:
        yield {_CLAIMS: folder}


@contextlib.contextmanager
def real_gpu(profile: str = "") -> Iterator[dict[str, str]]:
    """The first GPU: outside of MIG mode, or with an instance of `profile`."""
    import pytest  # as for MPS

    try:
        gpus = open_nvml().gpus()
    except ShareUnavailable as error:
        pytest.skip(str(error))
    profiles = {instance.profile for gpu in gpus[:1] for instance in gpu.instances}
    if profile and profile not in profiles:
        pytest.skip(f"the first GPU has no MIG instance {profile}")
    if not profile and any(gpu.mig for gpu in gpus[:1]):
        pytest.skip("the first GPU is in MIG mode")
    yield {}


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


def limit_confinement(share: Share) -> CpuLimitConfinement:
    cgroups = made_up_cgroups(Path(os.environ[_CGROUPS]))
    return CpuLimitConfinement(share, cgroups=cgroups, burned=cgroups.burned)


def mig_confinement(share: Share) -> MigConfinement:
    gpu = gpu_in_mig_mode("H200", ("3g", 4), ("1g", 0), ("1g", 1))
    claims = Path(os.environ[_CLAIMS])
    return MigConfinement(share, lambda: NvidiaMl(SimulatedNvml(gpu)), partial(simulated_driver, gpu), claims)


def green_confinement(share: Share) -> GreenConfinement:
    gpu = SimulatedGpu(MODELS["H200"])
    return GreenConfinement(share, lambda: NvidiaMl(SimulatedNvml(gpu)), partial(simulated_driver, gpu))


def full_confinement(share: Share) -> FullConfinement:
    gpu = SimulatedGpu(MODELS["H200"], exclusive=True)
    return FullConfinement(share, lambda: NvidiaMl(SimulatedNvml(gpu)), partial(simulated_driver, gpu))


CASES = {
    "cpu": Case("cpu:1", "cpu:9999", "core", reserved=False, machine=this_machine),
    "cpu-limit": Case(
        "cpu:500m@1",
        "cpu:9999000m",
        "millicore",
        reserved=False,
        machine=made_up_host,
        confinement=limit_confinement,
    ),
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
    "mig": Case(
        "mig:1g.18gb",
        "mig:2g.35gb",
        "sm",
        reserved=True,
        machine=simulated_gpu,
        confinement=mig_confinement,
    ),
    "green": Case(
        "green:30",
        "green:129",
        "sm",
        reserved=False,
        machine=simulated_gpu,
        confinement=green_confinement,
    ),
    "full": Case("full", "", "sm", reserved=True, machine=simulated_gpu, confinement=full_confinement),
}

CPU_CASES = {
    "cpu-limit for real": Case("cpu:250m", "cpu:9999000m", "millicore", reserved=False, machine=real_cgroups),
}

GPU_CASES = {
    "mps on a GPU": Case("mps:50", "mps:1", "sm", reserved=False, machine=lambda: real_mps(580)),
    "mps-sm on a GPU": Case("mps-sm:2", "mps-sm:999", "sm", reserved=True, machine=lambda: real_mps(590)),
    "mig on a GPU": Case("mig:1g.10gb", "mig:1g.999gb", "sm", reserved=True, machine=lambda: real_gpu("1g.10gb")),
    "green on a GPU": Case("green:32", "green:999", "sm", reserved=False, machine=real_gpu),
}

ALL_CASES = CASES | CPU_CASES | GPU_CASES
