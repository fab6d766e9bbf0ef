"""A host with one H200 that does not exist, for whole processes: kernels of a HostCompiler compute.

CUDA's libraries are the executing stand-ins. Its driver and NVML, as Python packages, are the simulated ones. The
control program of MPS is the simulated program.
"""

import contextlib
import os
import signal
from pathlib import Path

from fractune_core.cuda import MPS_PIPE_DIRECTORY, PROGRAM
from tests.support.executing import executing_stand_in
from tests.support.hardware.over_stand_ins import environ_over
from tests.support.hardware.simulated_cuda import SimulatedCuda, Staged
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu
from tests.support.hardware.simulated_mps import simulated_program
from tests.support.hardware.simulated_mps_control import tell
from tests.support.hardware.simulated_nvml import SimulatedNvml
from tests.support.paths import REPOSITORY

_MODULE = """
import sys
from tests.support.executing.gpu_host import {name}
sys.modules[__name__] = {name}()
"""


def make_host(folder: Path) -> dict[str, str]:
    """Fill the folder, which has a short path; the environment of the host's processes."""
    libraries, packages, programs, scratch = (folder / name for name in ("lib", "python", "bin", "tmp"))
    for each in (libraries, packages / "cuda" / "bindings", programs, scratch):
        each.mkdir(parents=True)
    executing_stand_in(libraries)
    (packages / "cuda" / "bindings" / "__init__.py").touch()
    (packages / "cuda" / "bindings" / "driver.py").write_text(_MODULE.format(name="driver"))
    (packages / "pynvml.py").write_text(_MODULE.format(name="nvml"))
    program = programs / PROGRAM
    program.write_text(simulated_program())
    program.chmod(0o755)
    path = os.pathsep.join([str(packages), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    known = {"PYTHONPATH": path.rstrip(os.pathsep), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    return environ_over(libraries, **known, TMPDIR=str(scratch))


def end_daemons(folder: Path) -> None:
    for pid_file in folder.rglob(f"{PROGRAM}.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


def _gpu() -> SimulatedGpu:
    return SimulatedGpu(MODELS["H200"])


def nvml() -> SimulatedNvml:
    return SimulatedNvml(_gpu())


def driver() -> SimulatedCuda:
    """CUDA as it starts in this process: a client of MPS where a daemon runs."""
    try:
        is_client = tell(os.environ.get(MPS_PIPE_DIRECTORY, "/nowhere"), f"stage connect {os.getpid()}") == "0"
    except OSError:
        is_client = False
    return SimulatedCuda(_gpu(), Staged(mps=is_client))
