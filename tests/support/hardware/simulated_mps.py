"""What stands in for a GPU under MPS: the simulated control program on PATH, and a simulated CUDA driver beside it."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fractune_core.cuda import MPS_PIPE_DIRECTORY, PROGRAM
from fractune_workers.cuda.driver import DriverFailed
from fractune_workers.gpu.mps_control import MpsControl
from fractune_workers.gpu.nvml import Clocks, Gpu, NvmlFailed
from tests.support.hardware import simulated_mps_control
from tests.support.hardware.simulated_mps_control import SMS, tell

MEMORY_BYTES = 141 << 30
H200 = Gpu(
    index=0,
    uuid="GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65",
    name="NVIDIA H200",
    capability=(9, 0),
    sms=SMS,
    memory_bytes=MEMORY_BYTES,
    driver="590.0",
    cuda="13.1",
    exclusive=False,
    mig=False,
    mig_instances_at_most=0,
)
# SMs of an H200 by percentage, as a third party measured them.
H200_SMS = dict.fromkeys(range(1, 8), 8)
H200_SMS |= {8: 10, 9: 10, 10: 12, 11: 14, 12: 14, 13: 16, 14: 18, 15: 18, 20: 26, 25: 32, 40: 52, 46: 60, 50: 66}
H200_SMS |= {100: 132}
# Imported, so that Python finds it compiled.
_PROGRAM = """#!{} -IS
import sys
sys.path.insert(0, "{}")
from simulated_mps_control import main
sys.exit(main())
"""
_ERRORS = {"807": "CUDA_ERROR_MPS_SERVER_NOT_READY", "915": "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"}


def simulated_program() -> str:
    return _PROGRAM.format(sys.executable, Path(simulated_mps_control.__file__).parent)


@contextlib.contextmanager
def installed_program(text: str | None = None) -> Iterator[Path]:
    """A short folder: `bin` in it has the program `text`, by default the simulated one, and daemons of our own go
    there. No simulated daemon survives it.
    """
    from unittest.mock import patch  # half of what a confined process would import, and it installs no program

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mps-")))
        stack.enter_context(patch("fractune_core.cuda.daemon_folder", folder.joinpath))
        program = folder / "bin" / PROGRAM
        program.parent.mkdir()
        program.write_text(text or simulated_program())
        program.chmod(0o755)
        try:
            yield folder
        finally:
            for pid_file in folder.rglob(f"{PROGRAM}.pid"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid_file.read_text()), signal.SIGKILL)


@dataclass(frozen=True)
class OneGpu:
    """NVML of a host with one GPU."""

    gpu: Gpu = H200

    def gpus(self) -> list[Gpu]:
        return [self.gpu]

    def clocks(self, uuid: str) -> Clocks:
        raise NvmlFailed(f"{uuid} has no clock: it is simulated")


class Scripted(MpsControl):
    """A control program that gives one answer to everything."""

    def __init__(self, answer: str) -> None:
        super().__init__(Path("/nowhere"))
        self.answer = answer

    def ask(self, command: str) -> str:  # noqa: ARG002  MpsControl's signature
        return self.answer.strip()


@dataclass
class SimulatedDriver:
    """A driver that found what its fields say."""

    mps: bool = True
    sms: int = SMS
    met: list[int] = field(default_factory=list)
    """SMs that a kernel meets in one run after the other; empty = those that are shown"""
    memory: int = MEMORY_BYTES
    uuid: str = H200.uuid

    def is_mps_client(self) -> bool:
        return self.mps

    def sm_count(self) -> int:
        return self.sms

    def memory_bytes(self) -> int:
        return self.memory

    def count_sms(self, stream: int = 0) -> int:  # noqa: ARG002  the real driver's signature
        return self.met.pop(0) if self.met else self.sms

    def device_uuid(self) -> str:
        return self.uuid


def open_simulated_driver() -> SimulatedDriver:
    """CUDA as it would start in this process: by its environment, and by what the daemon says.

    Without a daemon it runs without MPS, on everything, and says nothing. Raises DriverFailed.
    """
    pipe_dir = Path(os.environ.get(MPS_PIPE_DIRECTORY, "/nowhere"))
    try:
        number = tell(pipe_dir, f"stage connect {os.getpid()} {os.environ.get('CUDA_MPS_SM_PARTITION', '')}")
    except OSError:
        return SimulatedDriver(mps=False)
    if number != "0":
        raise DriverFailed(f"CUDA error {number} ({_ERRORS[number]}); start the worker again")
    return SimulatedDriver(sms=_sms(pipe_dir), memory=_memory_bytes())


def _sms(pipe_dir: Path) -> int:
    if tell(pipe_dir, "stage mode") == "static":
        named = os.environ["CUDA_MPS_SM_PARTITION"]
        return next(found.sms for found in Scripted(tell(pipe_dir, "lspart")).partitions() if found.is_called(named))
    own = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
    return H200_SMS[int(min(own, float(tell(pipe_dir, "get_default_active_thread_percentage"))))]


def _memory_bytes() -> int:
    limit = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
    return int(limit.removeprefix("0=").removesuffix("M")) << 20 if limit else MEMORY_BYTES
