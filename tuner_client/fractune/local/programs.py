"""The programs of the server and the workers, for the command line. `fractune server` and `fractune worker` become
them. `fractune noise` measures with them. `fractune shares`, `fractune mps` and `fractune doctor` look at this machine
with them. Only this part of the client imports the server and the workers, and only when it is called: the client may
be installed without the libraries that they need.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fractune.local.stack import own_env
from fractune.local.state import StackFolder
from fractune_core.errors import FractuneError
from fractune_core.files.packs import Pack
from fractune_core.fleet.options import ServerOptions, WorkerOptions
from fractune_core.shares import Share

_END_S = 10.0
"""from a request to end until the process is killed"""
_HOW_TIMEOUT_S = 60.0
"""The child loads TVM, which takes seconds"""


@dataclass(frozen=True)
class Pages:
    """The running process; use `running_pages`."""

    address: str
    """of the first page"""
    token: str
    """the password that a browser asks for; empty for none"""
    process: subprocess.Popen[str]
    log: Path

    def end_reason(self) -> str:
        """Why the process has ended; empty while it runs."""
        return "" if self.process.poll() is None else _reason(self.process, self.log)


@contextlib.contextmanager
def running_pages(state: Path, *listen: str) -> Iterator[Pages]:
    """The pages of the stack that runs in `state`, until the block ends; `listen` are options of the command.

    Raises FractuneError if they cannot be served.
    """
    command = [sys.executable, "-m", "fractune.cli", "dashboard", "--state", str(state), "--json", *listen]
    log = StackFolder(state.expanduser().absolute()).logs / "dashboard.log"
    with (
        log.open("w") as said,
        subprocess.Popen(
            command,
            env={**os.environ, **own_env()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        try:
            yield _ready(process, log)
        finally:
            _end(process)


def _ready(process: subprocess.Popen[str], log: Path) -> Pages:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        process.wait()
        raise FractuneError(f"the dashboard did not start: {_reason(process, log)}")
    ready = json.loads(line)
    return Pages(ready["address"], ready["token"] or "", process, log)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _reason(process: subprocess.Popen[str], log: Path) -> str:
    """The last line that the process wrote."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1].removeprefix("fractune: ") if lines else f"it ended with exit code {process.returncode}"


PROOF_FAILED = "proof failed"
"""`proof` of an offer with a share that was entered and failed its proof"""


def run_server(options: ServerOptions) -> None:
    """Serve until stopped. Raises BadRequest for an address or TLS files, StateUnusable for the folder, RedisGone."""
    require("server", "rq", "sqlalchemy", "prometheus_client")
    require_driver(options.database_url)
    from fractune_server.main import run_server

    run_server(options)


def server_backup() -> ModuleType:
    """The module `fractune_server.admin`, which works on a server's state folder."""
    require("server", "rq", "sqlalchemy")
    from fractune_server import admin

    return admin


def server_admin(state_dir: Path, database_url: str | None) -> Any:
    """A fractune_server.admin.Admin, which works on a server's database on the server's machine."""
    require("server", "sqlalchemy")
    require_driver(database_url)
    from fractune_server.admin import Admin

    return Admin(state_dir, database_url)


_OF_ROLE = {"compile": ("onnx", "onnxslim"), "tune": ("psutil",)}
"""packages that a worker's child imports when it begins its work, which would then seem to be at fault"""


def run_worker(options: WorkerOptions) -> None:
    """Work until stopped. Raises ShareUnavailable for a share that cannot be verified, RedisGone."""
    require("worker", "rq", "tvm", *_OF_ROLE.get(options.role, ()))
    from fractune_workers.main import run_worker

    run_worker(options)


def measure_noise(
    share: Share, report_line: Callable[[str], None], *, measurers: Sequence[int], **options: Any
) -> dict[str, Any]:
    """Measure the reliability of timings here, by `options` of `fractune_workers.calibration.experiment.NoiseOptions`.

    Returns the report as plain JSON values. Raises ShareUnavailable for a share that cannot be verified, BadModel.
    """
    require("worker", "tvm")
    from fractune_workers.calibration import experiment

    wanted = experiment.NoiseOptions(share=share, measurers=tuple(measurers), **options)
    return experiment.measure_noise(wanted, report_line)


def make_pack(
    history: Callable[[str, str], list[Any]], report_line: Callable[[str], None], **options: Any
) -> dict[str, Any]:
    """Write a pack, by `options` of `fractune_workers.packs.packing.PackOptions`. `history`: the earlier trials of an
    operator by workload hash and target key. Returns the pack's numbers as plain JSON values. Raises BadModel,
    BadRequest, StateUnusable.
    """
    require("worker", "tvm")
    from fractune_workers.packs import packing

    return packing.make_pack(packing.PackOptions(**options), history, report_line)


def measure_pack(
    pack: Pack, out: Path, shares: Sequence[Share], minutes: float | None, report_line: Callable[[str], None]
) -> dict[str, Any]:
    """Measure a pack at shares of this machine, as of `fractune_workers.packs.measuring.measure_pack`. It needs TVM's
    runtime alone.
    """
    require("run", "tvm_ffi", "tvm_ffi_orcjit", "numpy")
    from fractune_workers.packs import measuring

    return measuring.measure_pack(pack, out, shares, minutes, report_line)


def machine_shares(named: Sequence[Share] = (), *, prove: bool) -> Iterator[dict[str, Any]]:
    """Each device of this machine, the host CPU first, as plain JSON values: `kind`, `label`, `uuid`, `offers`, and of
    the CPU `cpus` and `limits`. With `named` only these shares.

    Raises ShareUnavailable after the host CPU if no NVIDIA GPU is available.
    """
    from fractune_workers.inventory import shares as inventory

    for device in inventory.machine_shares(named, prove=prove):
        yield device.to_json()


def mig_commands(layout: str) -> list[str]:
    """The commands that would divide the first visible GPU by `layout`. Raises BadRequest, ShareUnavailable."""
    from fractune_workers.gpu import mig_layout, nvml

    gpu = nvml.visible_gpu(nvml.open_nvml().gpus())
    return [" ".join(command) for command in mig_layout.commands(mig_layout.plan_layout(layout, gpu), gpu)]


def apply_mig_layout(layout: str, report_line: Callable[[str], None]) -> list[str]:
    """Run them, each reported before it runs; the shares that exist afterwards. Raises BadRequest, ShareUnavailable."""
    from fractune_workers.gpu import mig_layout, nvml

    def look() -> nvml.Gpu:
        return nvml.visible_gpu(nvml.open_nvml().gpus())

    divided = mig_layout.apply_layout(layout, look(), look, lambda command: report_line(" ".join(command)))
    return [f"mig:{found.profile} is mig:{found.uuid}, {found.sms} SMs" for found in divided.instances]


def mps_daemon_here() -> tuple[Any, Any]:
    """The first visible GPU (a fractune_workers.gpu.nvml.Gpu), and the MPS daemon of its workers: a
    fractune_workers.gpu.mps_daemon.MpsDaemon. Raises ShareUnavailable for a GPU that has no shares of MPS.
    """
    from fractune_workers.confinement.mps import MpsConfinement

    confinement = MpsConfinement(Share("mps", "100"))
    return confinement.gpu, confinement.daemon


def visible_gpus() -> list[str]:
    """The UUIDs of the GPUs that this process may use. Raises ShareUnavailable when there is none."""
    from fractune_workers.gpu import nvml

    return [gpu.uuid for gpu in nvml.visible_gpus(nvml.open_nvml().gpus())]


def cpu_limits() -> dict[str, Any]:
    """The CPU limit of this process and the way to make one: a fractune_workers.inventory.cpus.LimitsHere."""
    from fractune_workers.inventory import cpus

    return cpus.limits_here().to_json()


def look_for_cuda() -> Any:
    """CUDA's parts on this machine: a fractune_workers.inventory.cuda.CudaHere."""
    from fractune_workers.inventory import cuda

    return cuda.look_for_cuda()


def require_driver(database_url: str | None) -> None:
    """Raises FractuneError when the database needs a driver that is not installed."""
    if database_url is not None and database_url.startswith("postgresql"):
        require("postgres", "psycopg")


def require(extra: str, *modules: str) -> None:
    """Raises FractuneError if a module of the extra is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise FractuneError(f"this part needs {', '.join(missing)}; install 'fractune[{extra}]'")


def how_imported(names: Sequence[str]) -> list[str]:
    """What the importer does with each operator of ONNX: `native`, `decomposed` or `refused`; empty texts if it is not
    installed here, or does not answer.
    """
    try:
        require("local", "tvm", "onnx")
        from fractune_workers.reader import reader_child

        child = reader_child("fractune_workers.children.importing.onnx_models.onnx_support", env=own_env())
        try:
            said: list[str] = child.call("how", _HOW_TIMEOUT_S, names=list(names))
        finally:
            child.stop()
    except FractuneError:
        return [""] * len(names)
    return said
