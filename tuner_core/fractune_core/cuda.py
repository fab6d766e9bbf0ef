"""The CUDA toolkit, wherever it is: the wheels of the extra `cuda`, a folder that CUDA_HOME names, the distribution's.
And what the environment says of a share of a GPU.

A toolkit is one folder with headers and libraries that belong together; parts of two are never mixed. Looking for it
needs neither a GPU nor a driver.
"""

import ctypes
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fractune_core.errors import BadRequest, shortened
from fractune_core.host.private_folders import is_private, private_path

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""the GPUs or MIG instances that CUDA shows a process"""
TOOLKIT_HOMES = ("CUDA_HOME", "CUDA_PATH")
"""folders of a toolkit, the first one that is set wins"""

MPS_PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
"""where clients reach the control daemon"""
MPS_LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
MPS_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""how much of the SMs a client may use"""
MPS_PARTITION = "CUDA_MPS_SM_PARTITION"
"""the static partition that a client belongs to"""
MPS_MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""device memory that a client may use, by device"""
MPS_PREFIX = "CUDA_MPS_"

# What the environment of a process says of its share of a GPU, as programs set it that place containers: NVIDIA's
# device plugin and DRA driver, and Amazon ECS (variables of MPS), and HAMi. A value is only a statement, and CUDA shows
# what is in force. CUDA ignores a value that cannot be meant; here it is refused in one line.

HAMI_LIMIT = "CUDA_DEVICE_SM_LIMIT"
"""percent of the GPU's time after which HAMi delays launches; its DRA driver adds the number of the device"""
HAMI_POLICY = "GPU_CORE_UTILIZATION_POLICY"
_WHOLE = 100
_SHOWN = 60
"""characters of a value in a message"""
_MOST = 4096
"""characters of a value"""


@dataclass(frozen=True)
class _Variable:
    form: str
    """regular expression of the whole value"""
    example: str


_PERCENT = _Variable(r"(?!0+(\.0+)?$)(100(\.0+)?|[0-9]{1,2}(\.[0-9]{1,6})?)", "a number above 0 and at most 100")
_LIMIT = r"[0-9]{1,2}=[0-9]{1,15}[KMGkmg]?[Bb]?"
_VARIABLES = {
    MPS_PERCENTAGE: _PERCENT,
    MPS_PIPE_DIRECTORY: _Variable(r"/.*", "an absolute path"),
    MPS_MEMORY_LIMIT: _Variable(rf"{_LIMIT}(,{_LIMIT})*", "0=8G"),
    HAMI_LIMIT: _Variable(r"100|[0-9]{1,2}", "a whole number from 0 to 100"),
    f"{HAMI_LIMIT}_0": _Variable(r"100|[0-9]{1,2}", "a whole number from 0 to 100"),
    HAMI_POLICY: _Variable(r"(?i)default|force|disable", "default, force or disable"),
}
"""those that are read; nothing else of the environment is"""


@dataclass(frozen=True)
class GpuEnvironment:
    """The statements about the first GPU of the process."""

    percentage: str = ""
    """of the SMs, to which MPS limits the process; empty where nothing is said, or 100"""
    pipe_directory: str = ""
    """of an MPS daemon that others run"""
    memory_limit: str = ""
    """of the device's memory, by MPS"""
    launch_percent: int = 0
    """of the GPU's time, after which HAMi delays launches; 0 = no limit. It takes no SMs away"""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Raises BadRequest for a value that cannot be meant."""
        said = {name: environ[name] for name in _VARIABLES if environ.get(name)}
        for name, value in said.items():
            wanted = _VARIABLES[name]
            if len(value) > _MOST or not value.isprintable() or not re.fullmatch(wanted.form, value):
                raise BadRequest(f"{name} is {shortened(value, _SHOWN)!r}: set it to {wanted.example}, or unset it")
        percentage = said.get(MPS_PERCENTAGE, "")
        is_limited = said.get(HAMI_POLICY, "").lower() != "disable"
        launch_percent = int(said.get(f"{HAMI_LIMIT}_0", said.get(HAMI_LIMIT, "0")))
        return cls(
            percentage="" if percentage and float(percentage) == _WHOLE else percentage,
            pipe_directory=said.get(MPS_PIPE_DIRECTORY, ""),
            memory_limit=said.get(MPS_MEMORY_LIMIT, ""),
            launch_percent=launch_percent % _WHOLE if is_limited else 0,
        )

    @property
    def launch_text(self) -> str:
        """What HAMi does, for people; empty without a limit."""
        if not self.launch_percent:
            return ""
        return (
            f"{HAMI_LIMIT}={self.launch_percent}: HAMi delays launches beyond {self.launch_percent} % of the GPU's "
            "time, and a kernel that runs has all SMs"
        )

    def lines(self) -> Iterator[str]:
        """The statements for people, each with the share to tune for."""
        if self.percentage:
            share = f"mps:{int(self.percentage)}" if self.percentage.isdigit() else "the nearest mps:PERCENT"
            yield f"{MPS_PERCENTAGE}={self.percentage}: at most this part of the SMs, no guarantee; tune for {share}"
        if self.pipe_directory:
            yield f"{MPS_PIPE_DIRECTORY}={self.pipe_directory}: an MPS daemon outside; its own percentage counts too"
        if self.memory_limit:
            yield f"{MPS_MEMORY_LIMIT}={self.memory_limit}: at most this much memory of the GPU"
        if self.launch_percent:
            yield f"{self.launch_text}; tune for full"


_RESTART = "the process is lost to CUDA: start it again"
_HINTS = {
    2: "no device memory is left: end other processes on this GPU, or raise the memory limit",
    46: "another process has the GPU to itself: end it, or set the compute mode to DEFAULT",
    100: "CUDA sees no GPU: compare CUDA_VISIBLE_DEVICES with `nvidia-smi -L`",
    101: "CUDA sees no such GPU: compare CUDA_VISIBLE_DEVICES with `nvidia-smi -L`",
    218: "the driver is too old: install 580 or newer",
    222: "the driver is too old: install 580 or newer",
    700: _RESTART,
    719: _RESTART,
    801: "this driver or device cannot do it: install driver 580 or newer",
    802: "the machine's GPUs are not ready: see that nvidia-fabricmanager runs",
    803: "the driver was upgraded under the running kernel: reboot",
    805: "no MPS server answers: see that the control daemon runs as this user, with this CUDA_MPS_PIPE_DIRECTORY",
    806: "the MPS server went away: " + _RESTART,
    807: "the MPS server is not ready: after a fault it waits until every affected client has ended; try again then",
    808: "the MPS server has reached its limit of clients: end some",
    809: "the MPS server has no connection left: lower CUDA_DEVICE_MAX_CONNECTIONS, or end some clients",
    810: "MPS ended this client: start it again",
    914: "the device lacks this resource: install driver 580 or newer",
    915: "the device cannot be divided like that: ask for fewer SMs; where an MPS daemon has static partitions, "
    "CUDA_MPS_SM_PARTITION has to name one",
    999: "look for a line with Xid in `dmesg`, and start the process again",
}
UNKNOWN = "`nvidia-smi` and `dmesg` may show more"


def what_to_do(code: int) -> str:
    """The next step for a user after the error `code`; UNKNOWN for a code without its own hint."""
    return _HINTS.get(code, UNKNOWN)


PROGRAM = "nvidia-cuda-mps-control"
PACKAGES = "nvidia-compute-utils-580 or nvidia-compute-utils-580-server on Ubuntu, nvidia-cuda-mps on Debian"
"""packages with the program; Ubuntu's are named after the driver's release"""
_PREFIX = f"fractune-mps-{os.getuid()}-"
_KEPT = "kept"


def daemon_folder(gpu_uuid: str) -> Path:
    """The folder of the GPU's daemon for this user's processes on this host."""
    return private_path(f"{_PREFIX}{gpu_uuid}")


def pipes_in(folder: Path) -> Path:
    """Where clients reach the daemon of this folder."""
    return folder / "pipe"


def kept_mark(folder: Path) -> Path:
    """A file that exists while the folder's daemon also runs without workers (`fractune mps start`)."""
    return folder / _KEPT


def kept_daemons() -> dict[str, Path]:
    """The pipe folders of the daemons that this user keeps, by the UUIDs of their GPUs."""
    folders = [mark.parent for mark in sorted(private_path("").glob(f"{_PREFIX}*/{_KEPT}"))]
    return {folder.name.removeprefix(_PREFIX): pipes_in(folder) for folder in folders if is_private(folder)}


CUDA_MAJOR = 13
NEEDED_DRIVER = "driver 580 or newer"


def driver_fault(cuda_major: int) -> str:
    """Why a driver that serves CUDA up to this major version cannot be used; empty if it can."""
    if cuda_major >= CUDA_MAJOR:
        return ""
    return f"the NVIDIA driver serves CUDA {cuda_major} only, and TVM needs CUDA {CUDA_MAJOR}; install {NEEDED_DRIVER}"


RUNTIME_SONAME = "libcudart.so.13"
"""the CUDA runtime that TVM's wheel is linked with"""

_SYSTEM_ROOTS = (Path("/usr/local/cuda"), Path("/usr"))
_LIBRARY_FOLDERS = ("lib", "lib64", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu")
_INCLUDE_FOLDERS = ("include", "targets/x86_64-linux/include")
_HEADERS = ("cuda_fp16.h", "mma.h", "crt/mma.h")
"""headers that TVM's code includes for half precision and for tensor cores; the others lie beside them"""


@dataclass(frozen=True)
class Toolkit:
    """Contents of one folder of a CUDA toolkit; None for a missing part."""

    nvrtc: Path | None = None
    """the library that compiles in memory and needs no other program"""
    nvcc: Path | None = None
    """the compiler driver, which needs a host compiler"""
    cudart: Path | None = None
    """the CUDA runtime of RUNTIME_SONAME, which measuring needs and building does not"""
    include: Path | None = None
    """the headers, if all are there that compiling by NVRTC needs"""


def toolkits(roots: Iterable[Path]) -> list[Toolkit]:
    """The toolkits in the folders, in their order; folders without any part are left out."""
    found = [_look_into(root) for root in dict.fromkeys(roots)]
    return [each for each in found if each.nvrtc or each.nvcc or each.cudart]


def toolkit_roots(environ: Mapping[str, str] = os.environ, path: Sequence[str] = tuple(sys.path)) -> list[Path]:
    """Where a toolkit may be, the most deliberate choice first: the environment, wheels, nvcc on PATH, the system."""
    named = [Path(environ[name]) for name in TOOLKIT_HOMES if environ.get(name)]
    return [*named, *_wheel_roots(path), *_root_of_nvcc(environ.get("PATH", "")), *_SYSTEM_ROOTS]


def find_toolkits() -> list[Toolkit]:
    """The toolkits of this machine, the first choice first."""
    return toolkits(toolkit_roots())


def find_cudart(found: Iterable[Toolkit]) -> Path | None:
    """The first CUDA runtime among the toolkits."""
    return next((toolkit.cudart for toolkit in found if toolkit.cudart), None)


def load_cudart() -> bool:
    """Load the CUDA runtime into this process, before TVM is imported: TVM's own library then finds it there.

    The dynamic loader does not look into wheels. False when there is none: then TVM has no CUDA devices.
    """
    return any(map(_loaded, (RUNTIME_SONAME, find_cudart(find_toolkits()))))


def runtime_version() -> str:
    """Of the CUDA runtime that this process has loaded or the loader finds: `13.0`; empty without one. Opens no GPU."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL(RUNTIME_SONAME).cudaRuntimeGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _loaded(library: str | Path | None) -> bool:
    if library is None:
        return False
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _wheel_roots(path: Iterable[str]) -> Iterator[Path]:
    """`nvidia/cu13` and its like, the newest version first: a namespace package that many wheels fill."""
    for entry in path:
        yield from sorted(Path(entry or ".").glob("nvidia/cu[0-9]*"), reverse=True)


def _root_of_nvcc(path: str) -> Iterator[Path]:
    nvcc = shutil.which("nvcc", path=path)
    if nvcc:
        yield Path(nvcc).resolve().parents[1]


def _look_into(root: Path) -> Toolkit:
    include = next((root / name for name in _INCLUDE_FOLDERS if _has_headers(root / name)), None)
    nvcc = root / "bin/nvcc"
    return Toolkit(
        nvrtc=_library(root, "libnvrtc.so.[0-9]*"),
        nvcc=nvcc if os.access(nvcc, os.X_OK) and nvcc.is_file() else None,
        cudart=_library(root, RUNTIME_SONAME),
        include=include,
    )


def _has_headers(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _HEADERS)


def _library(root: Path, pattern: str) -> Path | None:
    """The library of the shortest name, which is its soname: `libnvrtc.so.13`, not `libnvrtc.so.13.0.88`."""
    for folder in _LIBRARY_FOLDERS:
        found = sorted((root / folder).glob(pattern), key=lambda path: (len(path.name), path.name))
        if found:
            return found[0]
    return None
