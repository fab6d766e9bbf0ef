"""A server of `fractune_runtime.serving` as a process, in a Python that has its packages, and requests to it."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fractune.local.stack import own_env
from fractune_core.errors import BadRequest, FractuneError, ShareUnavailable, one_line, shortened
from fractune_core.shares import Share

SERVERS = {
    "fastapi": ("fastapi", "uvicorn", "prometheus_client"),
    "kserve": ("kserve",),
    "litserve": ("litserve", "prometheus_client"),
    "ray": ("ray", "ray.serve", "fastapi", "prometheus_client"),
}
"""the packages that each needs beside fractune's runtime"""
_ARGS = {"kserve": ("--http_port", "{port}", "--grpc_port", "{other}")}
_MISSING = """
import sys
from importlib.util import find_spec
for name in sys.argv[1:]:
    try:
        found = find_spec(name)
    except ImportError:
        found = None
    if found is None:
        print(name)
"""
_LOOK_WITHIN_S, _END_WITHIN_S, _ANSWER_WITHIN_S = 60.0, 60.0, 60.0
READY_WITHIN_S = 300.0
"""under a small limit the imports alone take a minute"""
_IDLE_S = 2.0
"""servers close connections that were idle for a few seconds"""
_CLIENTS = 16
_MOST_CHARACTERS = 300
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PARENT, _USED = 1, slice(11, 15)
"""fields of `/proc/PID/stat` behind the name"""


def check_server(name: str, python: str | os.PathLike[str]) -> None:
    """Raises BadRequest for an unknown server, and FractuneError where this Python has not what it needs."""
    if name not in SERVERS:
        raise BadRequest(f"--server '{one_line(name)}': write {', '.join(SERVERS)}")
    command = [_path_of(python), "-c", _MISSING, "fractune_runtime.serving", *SERVERS[name]]
    try:
        env = _environment(python)
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_LOOK_WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRequest(f"--server-python '{python}' is not a Python ({one_line(str(error))})") from error
    if ended.returncode:
        raise BadRequest(f"--server-python '{python}' is not a Python ({_last_line(ended.stderr)})")
    if missing := ended.stdout.split():
        wanted = ["fractune-runtime" if each == "fractune_runtime.serving" else each for each in missing]
        raise FractuneError(
            f"--server {name}: {python} lacks {', '.join(wanted)}; install it there, or name another Python by "
            "--server-python"
        )


class ModelServer:
    """A server that may still start; `other` is its port for gRPC, or for metrics."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int, other: int, log: Path) -> None:
        self.name, self.process, self.port, self.other, self.log = name, process, port, other, log
        self._connections = threading.local()
        self._all: list[http.client.HTTPConnection] = []

    def get(self, path: str, port: int | None = None) -> tuple[int, str]:
        """The status and the text. Raises OSError."""
        own = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=_ANSWER_WITHIN_S)
        with contextlib.closing(own):
            own.request("GET", path)
            answer = own.getresponse()
            return answer.status, answer.read().decode(errors="replace")

    def post(self, body: bytes) -> tuple[int, bytes]:
        """The status and the answer to a request. Each thread keeps its connection, while it is in use."""
        if time.monotonic() - getattr(self._connections, "used", -_IDLE_S) >= _IDLE_S:
            self._connections.own = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_WITHIN_S)
            self._all.append(self._connections.own)
        own: http.client.HTTPConnection = self._connections.own
        self._connections.used = time.monotonic()
        own.request("POST", "/v2/models/model/infer", body, {"Content-Type": "application/json"})
        answer = own.getresponse()
        return answer.status, answer.read()

    def ask(self, body: bytes) -> None:
        """Raises FractuneError for any answer but a good one."""
        try:
            status, answer = self.post(body)
        except (OSError, http.client.HTTPException) as error:
            raise FractuneError(f"{self.name} gave no answer ({type(error).__name__}): {self._end()}") from error
        if status != http.HTTPStatus.OK:
            raise FractuneError(f"{self.name} answered {status}: {_last_line(answer.decode(errors='replace'))}")

    def latencies_s(self, clients: Executor, body: bytes, arrivals_s: Sequence[float]) -> list[float]:
        """From the arrival of each request to its answer; the wait for a free client counts. Raises FractuneError for
        the first request without a good answer, and makes no more.
        """
        began_s, failed = time.perf_counter(), threading.Event()
        futures = list[Future[float]]()

        def answered(arrival_s: float) -> float:
            try:
                self.ask(body)
            except FractuneError:
                failed.set()
                raise
            return time.perf_counter() - began_s - arrival_s

        try:
            for arrival_s in arrivals_s:
                if failed.wait(max(0.0, began_s + arrival_s - time.perf_counter())):
                    break
                futures.append(clients.submit(answered, arrival_s))
            return [each.result() for each in futures]
        finally:
            for each in futures:
                each.cancel()

    def wait(self) -> None:
        """Until it is ready. Raises FractuneError where it ends before that, or takes too long."""
        until = time.monotonic() + READY_WITHIN_S
        while self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/v2/health/ready")[0] == http.HTTPStatus.OK:
                    return
            if time.monotonic() > until:
                raise FractuneError(f"{self.name} was not ready within {READY_WITHIN_S:.0f} s: {self._end()}")
            time.sleep(0.1)
        raise FractuneError(f"{self.name} did not start: {self._end()}")

    def cpu_s(self) -> float:
        """CPU time so far of the server, and of the processes that it has started and that have not ended."""
        return sum(int(each) for fields in self.processes().values() for each in fields[_USED]) * _TICK_S

    def processes(self) -> dict[int, list[str]]:
        """The server and what it has started, by process id: the fields of `/proc/PID/stat` behind the name."""
        stats = dict(filter(None, map(_stat, Path("/proc").glob("[0-9]*/stat"))))
        own = {self.process.pid}
        while more := {pid for pid, fields in stats.items() if int(fields[_PARENT]) in own} - own:
            own |= more
        return {pid: stats[pid] for pid in own & stats.keys()}

    def close(self) -> None:
        for each in self._all:
            each.close()

    def end(self) -> int:
        """Send SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_END_WITHIN_S)

    def _end(self) -> str:
        return _last_line(self.log.read_text(errors="replace"))


@contextlib.contextmanager
def serving(
    name: str,
    python: str | os.PathLike[str],
    bundle: Path,
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    confine: Callable[[], None] | None = None,
    launcher: Sequence[str] = (),
) -> Iterator[ModelServer]:
    """The server of this name, until the block ends. `confine` is called in its process before it starts; `launcher`
    is the command in front of its own.
    """
    port, other = _free_ports()
    args = [each.format(port=port, other=other) for each in _ARGS.get(name, ())]
    own = {"BUNDLE": str(bundle.absolute()), "HOST": "127.0.0.1", "PORT": str(port), "METRICS_PORT": str(other)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*launcher, _path_of(python), "-m", f"fractune_runtime.serving.{name}", *args],
            cwd=log.parent,
            env={**_environment(python), **own, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=confine,  # noqa: PLW1509  it writes a file at most
        )
    server = ModelServer(name, process, port, other, log)
    try:
        yield server
    finally:
        server.close()
        started = server.processes()
        with contextlib.suppress(ProcessLookupError):  # LitServe's worker outlives the program that began it
            os.killpg(process.pid, signal.SIGKILL)
        for pid in started:  # Ray's processes have groups of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def serving_at(
    share: str, name: str, python: str | os.PathLike[str], bundle: Path, log: Path, env: Mapping[str, str]
) -> Iterator[ModelServer]:
    """As `serving`, under a CPU limit that holds from the start, on cores of its own. Raises ShareUnavailable."""
    from fractune_workers.confinement.cpu_limit import CpuLimitConfinement
    from fractune_workers.confinement.limit_cgroups import LimitCgroups
    from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir

    cgroups = LimitCgroups()
    cgroups.remove_dead()
    confinement = CpuLimitConfinement(Share.parse(share))
    confinement.probe()
    limited = {**env, **confinement.environment()}

    def confine() -> None:
        os.sched_setaffinity(0, confinement.cores)
        if folder := confinement.cgroup:
            cgroups.join(folder)

    try:
        with (
            CoreLocks(default_lock_dir()).measuring(confinement.cores),
            serving(name, python, bundle, log, env=limited, confine=confine, launcher=confinement.launcher()) as server,
        ):
            yield server
    except subprocess.SubprocessError as error:
        raise ShareUnavailable(f"share '{share}': the server could not join its cgroup") from error
    finally:
        confinement.leave()


def clients() -> ThreadPoolExecutor:
    """Those of `latencies_s`, as many as wait for an answer at a time."""
    return ThreadPoolExecutor(_CLIENTS)


def request_of(inputs: Mapping[str, Any]) -> bytes:
    """Arrays as a request of the Open Inference Protocol."""
    from fractune_runtime.endpoint import described

    return json.dumps({"inputs": [described(name, array) for name, array in inputs.items()]}).encode()


def _environment(python: str | os.PathLike[str]) -> dict[str, str]:
    """Another Python than this one has packages of its own."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**inherited, **(own_env() if str(python) == sys.executable else {})}


def _path_of(python: str | os.PathLike[str]) -> str:
    """The server runs in another folder. A link stays: it leads to its environment. Raises BadRequest."""
    found = shutil.which(python)
    if found is None:
        raise BadRequest(f"--server-python '{one_line(str(python))}': no such program; give the path of a Python")
    return os.path.abspath(found)  # noqa: PTH100  `resolve` follows links


def _last_line(text: str) -> str:
    lines = text.strip().splitlines() or ["it wrote nothing"]
    return shortened(one_line(lines[-1]), _MOST_CHARACTERS)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _stat(path: Path) -> tuple[int, list[str]] | None:
    try:
        return int(path.parent.name), path.read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return None
