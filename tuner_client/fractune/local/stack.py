"""The cluster on one machine: a private Redis, the server and the workers as child processes of this one.

The same programs run over the same paths as in a cluster; only their start differs. All their data lies in one state
folder, and every process ends with the block that started the stack, or with this process, however it ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from fractune.local.embedded_redis import disk_was_full, forget_server, redis_answers, redis_command, redis_given_up
from fractune.local.noise_file import advice_for
from fractune.local.processes import POLL_S, Part, Running, end_in_order, tend_all
from fractune.local.state import StackFolder, open_state, socket_dir
from fractune.server.rpc import RpcClient
from fractune_core.analysis.noise import NoiseAdvice
from fractune_core.errors import FractuneError, RedisGone, ServerUnreachable, ShareUnavailable
from fractune_core.fleet.options import Serving
from fractune_core.host.cpus import EACH_A_CORE, CpuTopology
from fractune_core.shares import QUIET_BELOW_CORES, Share, with_kernel_shares

START_TIMEOUT_S = 60.0
"""since the last start of a part: a part that dies during its start gets the whole time again, and is given up if it
keeps dying
"""
MAX_BUILDERS, MAX_BUILDERS_FOR_A_GPU = 8, 16
"""a GPU's measurers are fast and need few cores, so they would wait for builds"""
_REDIS_SOCKET = "redis.sock"
_SERVER_SOCKET = "server.sock"
_READY_FILE = "server.ready"
_WORKERS, _SERVER, _REDIS = range(3)  # the order in which they end
_PACKAGES = ("fractune", "fractune_core", "fractune_server", "fractune_workers")


@dataclass(frozen=True)
class StackOptions(Serving):
    """The parts of a stack."""

    state: Path
    shares: tuple[str, ...] = ()
    """one measurer for each, or as many as are advised and fit (`plan_measurers`)"""
    compile: bool = False
    """a compile worker, for ingest and bundles; two in a stack for others"""
    search: bool = False
    """a tuner instance and builders from the start; else they come when `Stack.start_search` is called"""
    listen: str = field(default="", kw_only=True)
    """of a stack for others; empty = a Unix socket in the state folder, for this command. With TLS this machine's user
    has a socket without it."""
    resume: bool = False
    """go on with jobs that an earlier stack left open; otherwise they count as interrupted"""


def plan_builders(shares: Sequence[Share], cores: Sequence[int]) -> int:
    """The number of builders on the cores of search and builds."""
    on_gpu = any(share.device_kind == "cuda" for share in shares)
    return min(len(cores), MAX_BUILDERS_FOR_A_GPU if on_gpu else MAX_BUILDERS)


def plan_cores(
    shares: Sequence[Share], available: Sequence[int], topology: CpuTopology = EACH_A_CORE
) -> dict[str, list[int]]:
    """Cores for each share: separate ones while that leaves one for builds, else from the first core on. A GPU share
    has one, where its kernels are launched. A CPU share that is larger than the machine is left out: its worker refuses
    it with the reason.
    """
    wanted = [share for share in shares if share.host_cores <= len(available)]
    apart = sum(share.host_cores for share in wanted) < len(available)
    plan: dict[str, list[int]] = {}
    free = list(available)
    for share in wanted:
        plan[str(share)] = topology.choose(free, share.host_cores)
        free = _without(free, plan[str(share)]) if apart else free
    return plan


def plan_measurers(
    shares: Sequence[Share], wanted: Mapping[str, int], available: Sequence[int], topology: CpuTopology = EACH_A_CORE
) -> list[tuple[Share, list[int]]]:
    """The measurers and their cores: one for each share, then more, up to the number by share in `wanted` (else the
    usual number). More are added only while unused cores exist and one is left for builds.
    """
    plan = plan_cores(shares, available, topology)
    measurers = [(share, plan.get(str(share), [])) for share in shares]
    free = _without(available, topology.with_siblings(core for cores in plan.values() for core in cores))
    for share in shares:
        for _ in range(1, wanted.get(str(share), share.default_measurers)):
            cores = topology.choose(free, share.host_cores)
            left = _without(free, topology.with_siblings(cores))
            if plan.get(str(share)) and left:
                measurers.append((share, cores))
                free = left
    return measurers


def work_cores(
    measurers: Iterable[tuple[Share, Sequence[int]]],
    available: Sequence[int],
    host_cores: int,
    topology: CpuTopology = EACH_A_CORE,
) -> list[int]:
    """Cores for search and builds: those without a measurement, or all of them if none is left. A CPU measurement on
    the whole host stops search and builds anywhere: they need not stay off its cores. A measurement owns whole
    physical cores: the other CPUs of a core are left out too.
    """
    quiet = host_cores < QUIET_BELOW_CORES
    taken = {core for share, cores in measurers if not (quiet and share.device_kind == "cpu") for core in cores}
    return _without(available, topology.with_siblings(taken)) or list(available)


def _without(cores: Iterable[int], taken: Iterable[int]) -> list[int]:
    used = set(taken)
    return [core for core in cores if core not in used]


@contextlib.contextmanager
def running_stack(options: StackOptions) -> Iterator[Stack]:
    """The stack, serving and complete but for `Stack.skipped_shares`, until the block ends. Raises StateUnusable for
    the folder, ShareUnavailable for a share that this machine does not have or if none can be verified, RedisGone,
    or FractuneError when a part keeps dying.
    """
    _check_shares(options.shares)
    with open_state(options.state) as folder, socket_dir(folder, _SERVER_SOCKET) as sockets:
        stack = Stack(options, folder, sockets)
        try:
            stack.start()
            yield stack
        except BaseException as stop:
            if not isinstance(stop, Exception):  # Ctrl-C, a signal
                stop.add_note(f"the log is kept in {folder.path}")
            raise
        finally:
            stack.stop()


def _check_shares(shares: Sequence[str]) -> None:
    from fractune_workers.confinement import confinement_for

    for share in map(Share.parse, with_kernel_shares(shares)):
        confinement_for(share).probe()


class Stack:
    """The running processes; use `running_stack`. Thread-safe."""

    def __init__(self, options: StackOptions, folder: StackFolder, sockets: Path) -> None:
        self.skipped_shares: dict[str, str] = {}
        """shares that could not be verified when the stack started, each with the cause; it goes on without them"""
        self._options = options
        self._folder = folder
        self._sockets = sockets
        self._listen = options.listen or f"unix:{sockets / _SERVER_SOCKET}"
        self._ready_file = sockets / _READY_FILE
        self._server_starts = 0
        self._last_start_s = 0.0
        self._worker_names: dict[str, str] = {}
        self._search_wanted = threading.Event()
        if options.search:
            self._search_wanted.set()
        self._complete = threading.Event()
        self._ended = threading.Event()
        self._failed = threading.Event()
        self._failure: FractuneError | None = None
        self._on_failure: Callable[[], None] | None = None
        # Not a daemon: the processes die with this thread, so it must be the last to go.
        self._thread = threading.Thread(target=self._tend, name="stack")

    @property
    def address(self) -> str:
        """The server's address: HOST:PORT or unix:PATH."""
        return self._listen

    @property
    def own_address(self) -> str:
        """The address for this machine's user, without credentials."""
        return self._listen if self._options.tls is None else f"unix:{self._sockets / _SERVER_SOCKET}"

    def failure(self, timeout_s: float = 0.0) -> FractuneError | None:
        """The error that broke the stack, waiting up to `timeout_s` for one; None while it works."""
        self._failed.wait(timeout_s)
        return self._failure

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, in another thread, when the stack breaks."""
        self._on_failure = callback
        if self._failure is not None:
            callback()

    def start(self) -> None:
        """Start all parts and wait until the server answers and every worker has registered."""
        self._ready_file.unlink(missing_ok=True)
        self._last_start_s = time.monotonic()
        self._thread.start()
        self._await(self._ready_file.exists, "the server to serve")
        self._listen = self._ready_file.read_text().strip()
        with RpcClient(self.own_address) as client:
            self._await(lambda: self._all_registered(client), "the workers to register")
        self._complete.set()
        self._folder.publish_address(
            self.own_address, for_others=bool(self._options.listen), skipped_shares=self.skipped_shares
        )

    def start_search(self) -> None:
        """Start the tuner instance and the builders, if they do not run; returns before they have registered."""
        self._search_wanted.set()

    def stop(self) -> None:
        """End every process, in order; no process is left when this returns."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _await(self, is_so: Callable[[], bool], what: str) -> None:
        while not is_so():
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > self._last_start_s + START_TIMEOUT_S:
                raise FractuneError(f"waited {START_TIMEOUT_S:g} s for {what}; the logs are in {self._folder.logs}")
            self._failed.wait(POLL_S)

    def _all_registered(self, client: RpcClient) -> bool:
        try:
            found = {worker.name.removeprefix("workers/") for worker in client.workers()}
        except (RedisGone, ServerUnreachable):  # either is started again
            return False
        return set(self._worker_names.values()) <= found

    # ---- the thread that owns the processes ----------------------------------------------------------------

    def _tend(self) -> None:
        running: list[Running] = []
        try:
            redis = Running(self._redis_part())
            running.append(redis)
            self._await_redis(redis)
            forget_server(self._sockets / _REDIS_SOCKET)
            steady, search = self._worker_parts()
            if not self._ended.is_set():
                running += [Running(part) for part in [self._server_part(), *steady]]
            while not self._ended.is_set():
                if search and self._search_wanted.is_set():
                    running += [Running(part) for part in search]
                    search = []
                if redis.tend():  # parts that need Redis are restarted when Redis has read its file
                    self._await_redis(redis)
                for part, refusal in tend_all(running):
                    del self._worker_names[part.name]
                    self._leave_out(part.kind, refusal, [each.part.kind for each in running])
                self._ended.wait(POLL_S)
        except FractuneError as error:
            self._fail(error)
        except OSError as error:
            self._fail(self._folder.failure() or FractuneError(f"the stack could not start a process: {error}"))
        finally:
            end_in_order(running)

    def _leave_out(self, share: str, refusal: ShareUnavailable, left: Sequence[str]) -> None:
        """Go on with the shares `left`. Raises the refusal if none is left, or if jobs may count on the refused one."""
        if share in left:
            return
        if self._complete.is_set() or not any(left):
            raise refusal
        self.skipped_shares[share] = str(refusal)

    def _fail(self, error: FractuneError) -> None:
        self._failure = error
        self._failed.set()
        if self._on_failure is not None:
            self._on_failure()

    def _await_redis(self, redis: Running) -> None:
        while not self._ended.is_set():
            redis.tend()
            if redis_answers(self._sockets / _REDIS_SOCKET):
                return
            self._ended.wait(POLL_S / 5)

    # ---- the parts -----------------------------------------------------------------------------------------

    def _redis_part(self) -> Part:
        def command() -> list[str]:
            return redis_command(self._sockets / _REDIS_SOCKET, self._folder.redis_dir)

        def hindrance(said: str) -> FractuneError | None:
            return self._folder.full() if disk_was_full(said) else self._folder.failure()

        log = self._folder.logs / "redis.log"
        return Part("redis", command, log, {}, _REDIS, given_up=redis_given_up, hindrance=hindrance)

    def _server_part(self) -> Part:
        def command() -> list[str]:
            self._server_starts += 1
            args = ["--listen", self._listen, "--state", str(self._folder.path)]
            args += ["--ready-file", str(self._ready_file)]
            # A server that died in mid-job goes on with it, whatever the option at the start was.
            args += ["--resume" if self._options.resume or self._server_starts > 1 else "--no-resume"]
            args += ["--metrics", self._options.metrics] if self._options.metrics else []
            args += ["--audit", str(self._options.audit)] if self._options.audit else []
            args += ["--insecure"] if self._options.insecure else []
            args += self._tls_args()
            return self._fractune("server", args)

        return self._own_part("server", command, _SERVER)

    def _tls_args(self) -> list[str]:
        tls = self._options.tls
        if tls is None:
            return []
        args = ["--tls-cert", str(tls.cert), "--tls-key", str(tls.key)]
        args += ["--client-ca", str(tls.client_ca)] if tls.client_ca else []
        return [*args, "--local-socket", str(self._sockets / _SERVER_SOCKET)]

    def _worker_parts(self) -> tuple[list[Part], list[Part]]:
        """The workers at the start of the stack, and those for search."""
        shares = [Share.parse(share) for share in with_kernel_shares(self._options.shares)]
        available, topology = sorted(os.sched_getaffinity(0)), CpuTopology.read()
        advice = advice_for(self._folder.path, [str(share) for share in shares])
        wanted = {share: each.measurers for share, each in advice.items() if each}
        measurers = plan_measurers(shares, wanted, available, topology)
        rest = work_cores(measurers, available, os.cpu_count() or 1, topology)
        parts: list[Part] = []
        for share, cores in measurers:
            label = measurer_label(share)
            twins = sum(part.kind == str(share) for part in parts)
            part = self._measure_part(f"{label}-{twins + 1}" if twins else label, share, cores, advice)
            parts.append(replace(part, kind=str(share)))
        if self._options.compile:
            # A stack for others has two: a model that takes long to read must not delay other models.
            labels = ["compile", "compile-2"] if self._options.listen else ["compile"]
            parts += [self._worker_part(label, "compile", rest) for label in labels]
        builders = range(plan_builders(shares, rest))
        search = [self._worker_part(f"build-{number}", "build", rest) for number in builders]
        return parts, [*search, self._worker_part("tune", "tune", rest)]

    def _measure_part(
        self, label: str, share: Share, cores: Sequence[int], advices: Mapping[str, NoiseAdvice | None]
    ) -> Part:
        advice = advices[str(share)]
        margin = ["--margin", str(advice.margin)] if advice else []
        return self._worker_part(label, "measure", cores, ["--share", str(share), *margin])

    def _worker_part(self, label: str, role: str, cores: Sequence[int], args: Sequence[str] = ()) -> Part:
        def command() -> list[str]:
            # A name is used once: the queue still knows the dead worker's for a while.
            self._worker_names[label] = f"{label}-{uuid.uuid4().hex[:8]}"
            named = ["--role", role, "--name", self._worker_names[label]]
            placed = ["--cores", ",".join(str(core) for core in cores)] if cores else []
            return self._fractune("worker", [*named, *placed, *args])

        return self._own_part(label, command, _WORKERS)

    def _own_part(self, name: str, command: Callable[[], list[str]], rank: int) -> Part:
        log = self._folder.logs / f"{name}.log"
        return Part(name, command, log, own_env(), rank, hindrance=lambda _: self._folder.failure())

    def _fractune(self, command: str, args: Sequence[str]) -> list[str]:
        self._last_start_s = time.monotonic()
        redis_url = "unix://" + quote(str(self._sockets / _REDIS_SOCKET))
        shared = ["--redis", redis_url, "--secret-file", str(self._folder.secret_file)]
        return [sys.executable, "-m", "fractune.cli", command, *shared, *args]


def measurer_label(share: Share) -> str:
    """A name for the measurers of a share and their log files: a period is written with a slash (`cpu:500m/10ms`)."""
    return f"measure-{share}".replace(":", "-").replace("/", "-")


def own_env() -> dict[str, str]:
    """Children import our packages from the folders of this process, never from the folder they run in."""
    specs = [importlib.util.find_spec(name) for name in _PACKAGES]
    roots = dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin)
    path = os.pathsep.join(filter(None, [*roots, os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
