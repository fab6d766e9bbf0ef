"""Real worker processes for tests, and small real work for them."""

import contextlib
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from fractune_core.errors import FractuneError
from fractune_core.fleet.messages import WorkerInfo
from fractune_core.fleet.options import WorkerOptions
from fractune_core.fleet.redis_state import worker_key
from fractune_core.fleet.signed_messages import open_worker
from fractune_workers.main import run_worker
from tests.support.processes.ready_made import ReadyMade
from tests.support.processes.redis_process import wait_until
from tests.support.secret import SECRET


class WorkerProcess:
    """One worker process; `kill` is kill -9. `before`: Python that runs in it first."""

    def __init__(
        self, name: str, role: str, url: str, gate: Path, share: str = "", cores: str = "", before: str = ""
    ) -> None:
        self.name = name
        self.log = ""
        """what it wrote to its error output, once it is stopped"""
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed when it is stopped
        self.process = ReadyMade(__name__, name, role, url, str(gate), share, cores, before, stderr=self._stderr)

    def info(self, connection: redis.Redis) -> WorkerInfo:
        """What the worker says of itself, once it is ready."""
        wait_until(lambda: connection.exists(worker_key(self.name)) or self.process.poll() is not None, 60)
        entry: Any = connection.get(worker_key(self.name))
        assert entry is not None, f"worker {self.name} ended with exit code {self.process.returncode}"
        return open_worker(SECRET, self.name, entry)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def children(self) -> list[int]:
        """Process ids of the worker's own children."""
        return [pid for pid in _pids() if _parent(pid) == self.process.pid]

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.process.kill()
        if not self._stderr.closed:
            self._stderr.seek(0)
            self.log = self._stderr.read()
            self._stderr.close()


@contextlib.contextmanager
def worker(
    name: str, role: str, url: str, gate: Path, share: str = "", cores: str = "", before: str = ""
) -> Iterator[WorkerProcess]:
    process = WorkerProcess(name, role, url, gate, share, cores, before)
    try:
        yield process
    finally:
        process.stop()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


_SIZES = 64, 96, 512
_DESCRIBES = f"""
import json, tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms
from fractune_workers.children.importing.passes import described
from fractune_workers.children.tvm_api.target import default_target, target_key
target, found = default_target(2), {{}}
for size in {_SIZES}:
    a = te.placeholder((size, size), name="a")
    b = te.placeholder((size, size), name="b")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    op = described("matmul", 1, tvm.IRModule({{"main": te.create_prim_func([a, b, c])}}))
    facts = {{"hash": op.workload_hash, "json": op.workload_json}}
    found[size] = {{**facts, "target": str(target), "key": target_key(target)}}
print(json.dumps(found))
"""


def matmul_workload(size: int) -> dict[str, Any]:
    """A small real operator of one of the sizes: its hash and text."""
    return _matmul_workloads()[str(size)]


@functools.cache
def _matmul_workloads() -> dict[str, dict[str, Any]]:
    """By size, all made in one process: to import TVM takes seconds."""
    out = subprocess.run([sys.executable, "-c", _DESCRIBES], capture_output=True, text=True, check=True).stdout
    workloads: dict[str, dict[str, Any]] = json.loads(out.splitlines()[-1])
    return workloads


def main() -> int:
    name, role, url, gate, share, cores, before = sys.argv[1:]
    exec(before)  # noqa: S102
    kept = [int(core) for core in cores.split(",")] if cores else None
    try:
        run_worker(WorkerOptions(role, url, SECRET, share or None, kept, Path(gate), name))
    except FractuneError as error:
        sys.stderr.write(f"fractune: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
