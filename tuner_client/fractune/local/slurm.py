"""A fleet as one Slurm job, started by a head on its first node.

The head runs Redis and the server on node-local disk, and `srun fractune node` on every node of the job. At the end it
copies all state to a shared folder.

Nothing secret is in the script or the environment: secrets are files of the shared folder, for its owner alone.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fractune.local.embedded_redis import redis_binary, write_redis_users
from fractune.local.processes import POLL_S, Part, Running, end_in_order, tend_all
from fractune.local.programs import require, server_backup
from fractune.local.stack import own_env
from fractune.local.state import SOCKET_PATH_BYTES
from fractune.server.rpc import RpcClient
from fractune_core.errors import BadRequest, FractuneError, RedisGone, ServerUnreachable, StateUnusable

DEFAULT_GRACE_S = 15.0
"""of the command and the nodes; Slurm kills 30 s after `scancel` (KillWait), before which the state has to be saved"""
WARNING_S = 180
"""before the time limit, Slurm asks the nodes to end"""
SAVE_EVERY_S = 600.0
START_TIMEOUT_S = 120.0
_SAVED, _SECRETS, _SECRET, _SOCKET = "fleet.tar", "secrets", "fleet.secret", "server.sock"
_SERVER, _REDIS = range(2)  # the order in which they end

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScriptOptions:
    """What the batch script requests of Slurm. Raises BadRequest for text that its lines cannot hold."""

    nodes: int
    time: str
    """as sbatch takes it, such as 4:00:00"""
    output: Path
    """folder of the job's log"""
    partition: str = ""
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    """0 = whole nodes, with all of their memory"""

    def __post_init__(self) -> None:
        for option, least, number in (
            ("--nodes", 1, self.nodes),
            ("--gpus-per-node", 0, self.gpus_per_node),
            ("--cpus-per-node", 0, self.cpus_per_node),
        ):
            if not least <= number <= 1 << 20:
                raise BadRequest(f"{option} {number}: give a number of at least {least}")
        if not self.time or set(self.time) - set("0123456789:-"):
            raise BadRequest(f"--time '{self.time}': write it as for sbatch, such as 4:00:00 or 1-12:00:00")
        if not (self.partition + "x").replace("-", "").replace("_", "").replace(",", "").isalnum():
            raise BadRequest(f"--partition '{self.partition}': write names of partitions, separated by commas")
        if not str(self.output).isprintable() or " " in str(self.output):
            raise BadRequest(
                f"--state '{self.output}': a line of a batch script cannot hold spaces; name another folder"
            )


def batch_script(options: ScriptOptions, head: Sequence[str]) -> str:
    """The file for sbatch; `head` are the words after `fractune slurm head`."""
    wanted = [
        "--job-name=fractune",
        f"--nodes={options.nodes}",
        "--ntasks-per-node=1",
        *([f"--cpus-per-task={options.cpus_per_node}"] if options.cpus_per_node else ["--exclusive", "--mem=0"]),
        f"--gpus-per-node={options.gpus_per_node}" if options.gpus_per_node else "",
        f"--time={options.time}",
        f"--partition={options.partition}" if options.partition else "",
        f"--signal=TERM@{WARNING_S}",
        "--requeue",
        "--no-kill",
        "--open-mode=append",
        f"--output={options.output}/slurm-%j.log",
    ]
    lines = ["#!/usr/bin/env bash", *(f"#SBATCH {each}" for each in wanted if each)]
    return "\n".join([*lines, "exec " + shlex.join([*_COMMAND, "slurm", "head", *head]), ""])


_COMMAND = (sys.executable, "-m", "fractune.cli")


@dataclass(frozen=True)
class HeadOptions:
    """How the head of a job runs its fleet."""

    state: Path
    """folder on a file system that all nodes of the job see: secrets, and the copy of all state"""
    shares: tuple[str, ...]
    """that each node measures"""
    builders: str
    """of each node, as `fractune node` takes it"""
    server: tuple[str, ...] = ()
    """options of `fractune server` for clients on other machines, but for those of Redis and of secrets"""
    command: tuple[str, ...] = ()
    """the fleet ends with this command, which finds the server by its environment; empty = it ends with the job"""
    host: str = "localhost"
    """the name by which the other nodes reach this one"""
    grace_s: float = DEFAULT_GRACE_S


def run_head(options: HeadOptions) -> int:
    """Run the fleet of this Slurm job until its command ends, its nodes end, or the caller's signal handler raises. All
    state is then in `options.state`, and the next job with that folder goes on with it. Returns the exit code of the
    command, or 0.

    Raises BadRequest outside of a job, StateUnusable for the folder, FractuneError when a part keeps dying.
    """
    require("server", "rq", "sqlalchemy", "redis")
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        raise BadRequest("this is no job of Slurm; submit the file that 'fractune slurm script' prints by sbatch")
    prepare(options.state)
    with _held(options.state), tempfile.TemporaryDirectory(prefix=f"fractune-{job}-") as local:
        if len(os.fsencode(f"{local}/{_SOCKET}")) > SOCKET_PATH_BYTES:
            raise StateUnusable(f"{local}: a Unix socket cannot have so long a path; set TMPDIR to a shorter folder")
        return _Head(options, Path(local)).run()


def prepare(state: Path) -> None:
    """Make the shared folder and the secrets in it that are missing, for this user alone. Raises StateUnusable."""
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        if state.stat().st_uid != os.getuid() or state.stat().st_mode & 0o077:
            raise StateUnusable(
                f"{state} holds secrets, and others can open it; chmod 700 {state}, or name a new folder"
            )
        write_redis_users(state / _SECRETS)
        secret = state / _SECRETS / _SECRET
        if not secret.exists():
            with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32) + "\n")
    except OSError as error:
        raise StateUnusable(
            f"cannot keep the fleet's state in {state}: {error.strerror}; name another folder"
        ) from error


@contextlib.contextmanager
def _held(state: Path) -> Iterator[None]:
    """The folder for this job alone. Raises StateUnusable."""
    with (state / "lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateUnusable(f"another job runs its fleet from {state}; name another folder by --state") from error
        yield


class _Head:
    def __init__(self, options: HeadOptions, local: Path) -> None:
        self._options = options
        self._local = local
        self._secrets = options.state / _SECRETS
        self._running: list[Running] = []
        with socket.create_server(("", 0)) as probe:
            self._port: int = probe.getsockname()[1]
        self._saved_at_s = time.monotonic()
        self._end_by_s = 0.0
        """command and nodes have this time together"""

    def run(self) -> int:
        self._restore()
        command: subprocess.Popen[bytes] | None = None
        is_cut = False
        try:
            self._start(self._redis_part())
            self._await(self._redis_answers, "Redis")
            self._start(self._server_part())
            self._await((self._local / "ready").exists, "the server")
            with self._nodes() as nodes:
                try:
                    self._await_measurers(nodes)
                    command = self._command()
                    self._tend_until(lambda: _has_ended(nodes) or _has_ended(command))
                    is_cut = not _has_ended(command)
                finally:
                    self._end_by_s = time.monotonic() + self._options.grace_s
                    _end(command, self._options.grace_s)
        finally:
            # The server first: what it has not read yet stays in Redis, and goes with the copy.
            end_in_order(self._running, self._options.grace_s)
            self._save(with_redis=True)
        if command is None:
            return 0
        if is_cut:
            self._again()
        return command.returncode if command.returncode >= 0 else 128 - command.returncode

    # ---- the parts -----------------------------------------------------------------------------------------

    @property
    def _address(self) -> str:
        return f"unix:{self._local / _SOCKET}"

    def _command(self) -> subprocess.Popen[bytes] | None:
        command, env = self._options.command, {**os.environ, "FRACTUNE_SERVER": self._address}
        try:
            return subprocess.Popen(command, env=env) if command else None
        except OSError as error:
            raise BadRequest(f"the command '{command[0]}' cannot be run: {error.strerror}; give its path") from error

    def _start(self, part: Part) -> None:
        with _without_sigterm():
            self._running.append(Running(part))

    def _redis_part(self) -> Part:
        folder = self._local / "redis"
        folder.mkdir(exist_ok=True)
        words = ["--port", str(self._port), "--bind", "*", "--protected-mode", "no"]
        words += ["--aclfile", str(self._secrets / "users.acl"), "--dir", str(folder)]
        words += ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--logfile", ""]
        return Part("redis", lambda: [str(redis_binary()), *words], None, {}, _REDIS, end_signal=signal.SIGINT)

    def _server_part(self) -> Part:
        words = ["--state", str(self._local / "state"), "--ready-file", str(self._local / "ready")]
        if self._options.server:
            words += [*self._options.server, "--local-socket", str(self._local / _SOCKET)]
        else:
            words += ["--listen", self._address]
        # With a command of its own the job submits anew, and begins with what the log has.
        words += ["--no-resume" if self._options.command else "--resume", *self._redis_words("server")]
        return Part("server", lambda: [*_COMMAND, "server", *words], None, own_env(), _SERVER, end_signal=signal.SIGINT)

    def _redis_words(self, user: str) -> list[str]:
        address = f"redis://{user}@{self._options.host}:{self._port}/0"
        password = ["--redis-password-file", str(self._secrets / f"{user}.password")]
        return ["--redis", address, *password, "--secret-file", str(self._secrets / _SECRET)]

    @contextlib.contextmanager
    def _nodes(self) -> Iterator[subprocess.Popen[bytes]]:
        """A node of the fleet on each node of the job, until the block ends."""
        cpus = os.environ.get("SLURM_CPUS_ON_NODE", "1")
        # A node that dies must not take the others along; its work is done by them.
        step = [
            "srun",
            "--ntasks-per-node=1",
            f"--cpus-per-task={cpus}",
            "--kill-on-bad-exit=0",
            "--no-kill",
            "--overlap",
        ]
        words = [*_COMMAND, "node", "--redis", f"redis://{self._options.host}:{self._port}/0"]
        words += ["--redis-passwords", str(self._secrets), "--secret-file", str(self._secrets / _SECRET)]
        words += ["--grace", f"{self._options.grace_s:g}", "--shares", ",".join(self._options.shares)]
        words += ["--builders", self._options.builders]
        process = subprocess.Popen([*step, *words], stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            yield process
        finally:
            # SIGTERM to srun would kill the nodes; this signal goes to them, and not to the batch script.
            subprocess.run(["scancel", "--quiet", "--signal=TERM", os.environ["SLURM_JOB_ID"]], check=False)
            _wait(process, max(0.0, self._end_by_s - time.monotonic()) + 5)

    def _redis_answers(self) -> bool:
        with socket.socket() as link:
            link.settimeout(1.0)
            try:
                link.connect(("127.0.0.1", self._port))
                link.sendall(b"PING\r\n")
                return link.recv(16).startswith(b"-NOAUTH")
            except OSError:
                return False

    # ---- while it runs -------------------------------------------------------------------------------------

    def _await(self, is_so: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        self._tend_until(lambda: is_so() or time.monotonic() > deadline_s)
        if not is_so():
            raise FractuneError(f"waited {START_TIMEOUT_S:g} s for {what}; its last lines stand above")

    def _await_measurers(self, nodes: subprocess.Popen[bytes]) -> None:
        """Wait for those of all nodes, and go on with what is there when the time for a start is over."""
        number = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
        wanted = Counter(self._options.shares * number)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        with RpcClient(self._address) as client:

            def are_there() -> bool:
                try:
                    return wanted <= client.measurers()
                except (RedisGone, ServerUnreachable):  # either is started again
                    return False

            self._tend_until(lambda: _has_ended(nodes) or time.monotonic() > deadline_s or are_there())

    def _tend_until(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            with _without_sigterm():
                tend_all(self._running)
            if time.monotonic() > self._saved_at_s + SAVE_EVERY_S:
                self._save(with_redis=False)
            time.sleep(POLL_S)

    def _again(self) -> None:
        """The time of the job ran out before its command: have Slurm run it once more."""
        _log.info("the time is up and the command has not ended; the job is queued again")
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)

    # ---- the copy of all state -----------------------------------------------------------------------------

    def _restore(self) -> None:
        saved = self._options.state / _SAVED
        if not saved.exists():
            return
        try:
            with tarfile.open(saved) as archive:
                archive.extractall(self._local, filter="data")
        except (tarfile.TarError, EOFError, OSError) as error:
            raise StateUnusable(f"{saved} cannot be read ({error}); put a copy of it there, or remove it") from error
        server_backup().restore(self._local / "backup.tar", self._local / "state")
        (self._local / "backup.tar").unlink()
        _log.info("going on with what %s has", saved)

    def _save(self, *, with_redis: bool) -> None:
        """Copy log, jobs, models and bundles, and with Redis ended what waits there, in one file that appears whole."""
        if not (self._local / "state").is_dir():
            return
        with tempfile.TemporaryDirectory(dir=self._options.state, prefix=".saving-") as drafts:
            backup, archive = Path(drafts) / "backup.tar", Path(drafts) / _SAVED
            server_backup().back_up(self._local / "state", backup)
            with tarfile.open(archive, "w") as all_of_it:
                all_of_it.add(backup, backup.name)
                if with_redis:
                    all_of_it.add(self._local / "redis", "redis")
            archive.replace(self._options.state / _SAVED)
        self._saved_at_s = time.monotonic()


@contextlib.contextmanager
def _without_sigterm() -> Iterator[None]:
    """What is started within the block never gets SIGTERM. Slurm sends it to every process of a job at once, and Redis
    and the server must outlive the nodes, whose last results they take.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_ended(process: subprocess.Popen[bytes] | None) -> bool:
    return process is not None and process.poll() is not None


def _end(process: subprocess.Popen[bytes] | None, timeout_s: float) -> None:
    if process is None or process.poll() is not None:
        return
    process.terminate()
    _wait(process, timeout_s)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
