"""A real server process for tests, and a client of it: `python -m tests.support.processes.server_process JSON`."""

import contextlib
import ctypes
import faulthandler
import functools
import hashlib
import importlib
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import psutil

from fractune_core.access import TlsFiles
from fractune_core.errors import FractuneError
from fractune_core.fleet.options import ServerOptions
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc
from fractune_server.main import run_server
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.ready_made import ReadyMade
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.secret import SECRET

WILL_STOP = "will stop"


class Client:
    """Stubs of all services on one channel."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        """Plain text without `credentials`."""
        self.channel = (
            grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
        )
        self.models = rpc.ModelServiceStub(self.channel)
        self.jobs = rpc.JobServiceStub(self.channel)
        self.log = rpc.LogServiceStub(self.channel)
        self.bundles = rpc.BundleServiceStub(self.channel)
        self.fleet = rpc.FleetServiceStub(self.channel)
        self.plans = rpc.PlanServiceStub(self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def upload(self, payload: bytes, name: str = "model.onnx") -> str:
        """The model's resource name."""
        digest = hashlib.sha256(payload).hexdigest()
        header = pb.ModelHeader(display_name=name, sha256=digest, size_bytes=len(payload))
        parts = [pb.UploadModelRequest(header=header)]
        parts += [pb.UploadModelRequest(data=payload[i : i + 1000]) for i in range(0, len(payload), 1000)]
        return self.models.UploadModel(iter(parts)).name

    def create(self, model: str, **spec: Any) -> pb.Job:
        shares = spec.pop("shares", ["cpu:1", "cpu:2"])
        return self.jobs.CreateJob(pb.CreateJobRequest(spec=pb.JobSpec(model=model, shares=shares, **spec)))

    def job(self, name: str) -> pb.Job:
        return self.jobs.GetJob(pb.GetJobRequest(name=name))

    def wait(self, name: str, holds: Callable[[pb.Job], bool], timeout_s: float = 60.0) -> pb.Job:
        """Poll until `holds`; the job as it is then."""
        found = self.job(name)

        def look() -> bool:
            nonlocal found
            found = self.job(name)
            return holds(found)

        try:
            wait_until(look, timeout_s)
        except TimeoutError as error:
            raise TimeoutError(str(found)) from error
        return found

    def finish(self, name: str, timeout_s: float = 60.0) -> pb.Job:
        """Watch the job to its end."""
        return list(self.jobs.WatchJob(pb.WatchJobRequest(name=name), timeout=timeout_s))[-1]


def as_call(error: object) -> grpc.Call:
    """A client's grpc.RpcError is a grpc.Call too, which its type does not say."""
    assert isinstance(error, grpc.Call)
    return error


def model_bytes(*operators: tuple[str, int], space: int = 1_000_000) -> bytes:
    """A model of the simulated fleet: operators by name and weight."""
    entries = [{"name": name, "weight": weight, "space": space} for name, weight in operators]
    return json.dumps({"operators": entries}).encode()


class ServerProcess:
    def __init__(self, redis_url: str, state: Path, *, waits: bool = False, **options: Any) -> None:
        """Serves when it is made, or has ended; with `waits` it has just been started."""
        base = next(parent for parent in state.parents if parent.is_dir())
        folder = Path(tempfile.mkdtemp(prefix="server-", dir=base))
        self.ready = ready = folder / "ready"
        whole = {"listen": "127.0.0.1:0", "redis_url": redis_url, "state_dir": str(state), "ready_file": str(ready)}
        self.stderr = folder / "stderr"
        with self.stderr.open("wb") as stderr:
            self.process = ReadyMade(__name__, json.dumps(whole | options), stderr=stderr)
        if not waits:
            self.wait_ready()

    def wait_ready(self) -> None:
        try:
            wait_until(lambda: self.ready.exists() or self.process.poll() is not None)
        except TimeoutError:
            self.kill()
            raise
        if not self.address:
            self.process.wait()

    @property
    def address(self) -> str:
        """Empty when it does not serve yet."""
        return self.ready.read_text() if self.ready.exists() else ""

    def client(self) -> Client:
        return Client(self.address)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop_where_told(self) -> None:
        """Of one that was told where to stop: at the next call there, from now on."""
        self.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: WILL_STOP in self.said())

    def wait_until_stopped(self) -> None:
        wait_until(lambda: psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)

    def terminate_aside(self) -> None:
        """SIGTERM to a thread that is not the main one, whose wait it does not end. Raises OSError."""
        pid = self.process.pid
        other = next(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if int(task.name) != pid)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.tgkill(pid, other, signal.SIGTERM):
            raise OSError(ctypes.get_errno(), "tgkill")

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.process.send_signal(signal.SIGABRT)  # it writes where each of its threads stands
            self.process.wait()
            raise TimeoutError(f"the server did not end within {timeout_s:g} s of SIGTERM:\n{self.said()}") from error

    def said(self) -> str:
        return self.stderr.read_text()


@contextlib.contextmanager
def running_server(redis_url: str, state: Path, **options: Any) -> Iterator[ServerProcess]:
    server = ServerProcess(redis_url, state, **options)
    try:
        yield server
    except BaseException:
        sys.stderr.write(f"the server said:\n{server.said()}\n")
        raise
    finally:
        if server.process.poll() is None:
            server.stop()


@contextlib.contextmanager
def simulated_stack(state: Path, **options: Any) -> Iterator[tuple[str, SimulatedFleet, ServerProcess, Client]]:
    """A Redis, by its address, a simulated fleet, a server and a client of it."""
    with (
        running_redis() as url,
        simulated_fleet(url) as fleet,
        running_server(url, state, **options) as server,
        server.client() as client,
    ):
        yield url, fleet, server, client


def stop_before(place: str) -> None:
    """After SIGUSR1, which it acknowledges by `WILL_STOP`, the process stops, once, where it is about to call `place`;
    SIGCONT lets it go on.

    `place` is MODULE:FUNCTION or MODULE:CLASS.METHOD; with a blank and a text behind it, a call with that argument.
    """
    function, _, wanted = place.partition(" ")
    module, _, names = function.partition(":")
    *path, last = names.split(".")
    owner = functools.reduce(getattr, path, importlib.import_module(module))
    real, asked = getattr(owner, last), threading.Event()

    def call(*args: Any, **options: Any) -> Any:
        if asked.is_set() and (not wanted or wanted in args):
            asked.clear()
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread goes no further, the others soon
        return real(*args, **options)

    setattr(owner, last, call)

    def ask(*_: Any) -> None:
        asked.set()
        os.write(sys.stderr.fileno(), f"{WILL_STOP}\n".encode())

    signal.signal(signal.SIGUSR1, ask)


def main() -> int:
    faulthandler.enable()
    options = json.loads(sys.argv[1])
    if place := options.pop("stops_before", ""):
        stop_before(place)
    if limit := options.pop("file_limit_bytes", None):
        # A write beyond it fails as on a full disk, with another errno; Python ignores the signal.
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for name in {"state_dir", "ready_file", "local_socket", "audit"} & options.keys():
        options[name] = Path(options[name])
    if "tls" in options:
        options["tls"] = TlsFiles(**{name: Path(path) for name, path in options["tls"].items()})
    logging.basicConfig(level=logging.INFO)
    try:
        run_server(ServerOptions(secret=SECRET, **options))
    except FractuneError as error:
        sys.stderr.write(f"fractune: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
