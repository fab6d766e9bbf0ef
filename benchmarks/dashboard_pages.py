"""The pages of `fractune dashboard` over a made-up log of a million records, beside 1,000 simulated workers.

The server, Redis, the store and the dashboard are real; the workers only say that they are there. Measured are the
duration and the compressed bytes of the overview and of the log's first page, and the server's processor time with one
tab and with twenty, alternately. A tab holds a stream of changes, and gets its page anew at each. Last comes the time
from SIGTERM to the end of the dashboard, with twenty streams open.

Usage: python -m benchmarks.dashboard_pages [--quick] [--out FILE] [--records N] [--workers N]
"""

import contextlib
import gzip
import http.client
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from benchmarks.support import match_log
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.processes import import_path
from benchmarks.support.server_figures import METRICS, Watch
from benchmarks.support.simulated_fleet import put_entry
from benchmarks.support.simulated_workers import FleetLife, SimulatedWorker
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import running_server

PAGE_BAR_S, BYTES_BAR, TABS_BAR, END_BAR_S = 0.3, 60_000, 1.10, 5.0
_PATHS = ("/", "/log", "/shares")
_FEW, _MANY = 1, 20
_ROUNDS, _ROUND_S = 4, 10.0
_CALLS = 20
_TIMEOUT_S = 60.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, help="in the log (default: 1,000,000)")
    parser.add_argument("--workers", type=int, default=1000, help="(default: %(default)s)")
    args = parser.parse_args()
    records = args.records or (10_000 if args.quick else 1_000_000)
    rounds, round_s = (1, 3.0) if args.quick else (_ROUNDS, _ROUND_S)
    found = {"records": records, "workers": args.workers, **_measured(records, args.workers, rounds, round_s)}
    write_result("dashboard_pages", args, found)
    for path, page in found["pages"].items():
        print(f"{path:8} {page['p50_s'] * 1e3:6.0f} ms, at most {page['most_s'] * 1e3:.0f} ms, {page['bytes']:,} bytes")
    print(
        f"dashboard: first page {found['pages']['/']['first_s'] * 1e3:.0f} ms (bar {PAGE_BAR_S * 1e3:.0f} ms), at most "
        f"{max(each['bytes'] for each in found['pages'].values()):,} bytes (bar {BYTES_BAR:,}); the server's time with "
        f"{_MANY} tabs over one {found['tabs_ratio']:.2f} (bar {TABS_BAR:.2f}); ended {found['end_s']:.1f} s after "
        f"SIGTERM (bar {END_BAR_S:.0f} s)"
    )


def _measured(records: int, workers: int, rounds: int, round_s: float) -> dict[str, Any]:
    with running_redis() as url, tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        state = Path(folder) / "state"
        match_log.filled_state(state, records, 100)
        with (
            redis.Redis.from_url(url) as connection,
            _workers(connection, url, workers),
            running_server(url, state, metrics=METRICS) as server,
            _dashboard(server.address) as (process, address),
        ):
            pages = {path: _page(address, path) for path in _PATHS}
            if (seen := len(_data(address)["workers"])) <= workers:
                raise SystemExit(f"dashboard_pages: the overview shows {seen} workers")
            watch = Watch(server, connection)
            cores: dict[int, list[float]] = {_FEW: [], _MANY: []}
            for _ in range(rounds):
                for tabs, found in cores.items():
                    with _tabs(address, tabs):
                        before = watch.read()
                        time.sleep(round_s)
                        after = watch.read()
                    found.append((after.cpu_s["server"] - before.cpu_s["server"]) / (after.at - before.at))
            with _tabs(address, _MANY):
                began = time.perf_counter()
                process.terminate()
                process.wait(_TIMEOUT_S)
                end_s = time.perf_counter() - began
    ratio = statistics.median(many / few for few, many in zip(cores[_FEW], cores[_MANY], strict=True))
    return {"pages": pages, "server_cores": cores, "tabs_ratio": ratio, "end_s": end_s}


@contextlib.contextmanager
def _workers(connection: redis.Redis, url: str, count: int) -> Iterator[None]:
    """Entries of so many measurers, renewed as theirs are."""
    fleet = [SimulatedWorker(url, "measure", f"measure-simulated-{number}", FleetLife()) for number in range(count)]
    over = threading.Event()

    def renew() -> None:
        """One more comes each second, so that there is a change to show."""
        for number in itertools.count():
            fleet.append(SimulatedWorker(url, "measure", f"measure-simulated-late-{number}", FleetLife()))
            with connection.pipeline(transaction=False) as pipe:
                for each in fleet:
                    put_entry(pipe, each)
                pipe.execute()
            if over.wait(1.0):
                return

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        yield
    finally:
        over.set()
        renewing.join()


@contextlib.contextmanager
def _dashboard(server: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "fractune.cli", "dashboard", "--server", server, "--listen", "127.0.0.1:0"]
    env = {"PYTHONPATH": import_path()}
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process, urlsplit(json.loads(next(iter(process.stdout or ())))["address"]).netloc
        finally:
            process.kill()


def _page(address: str, path: str) -> dict[str, Any]:
    """The first call is that of somebody who opens the page; the server was not asked before."""
    secs, size = [], 0
    for _ in range(_CALLS):
        began = time.perf_counter()
        body = _get(address, path)
        secs.append(time.perf_counter() - began)
        size = len(body)
        if b"<h1>" not in gzip.decompress(body):
            raise SystemExit(f"dashboard_pages: the answer to {path} is not a page")
    return {"first_s": secs[0], "p50_s": statistics.median(secs), "most_s": max(secs), "bytes": size}


def _get(address: str, path: str) -> bytes:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=_TIMEOUT_S)) as connection:
        connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        return connection.getresponse().read()


def _data(address: str) -> Any:
    return json.loads(gzip.decompress(_get(address, "/?as=json")))


@contextlib.contextmanager
def _tabs(address: str, count: int) -> Iterator[None]:
    """Tabs of the overview, as browsers hold them."""
    over = threading.Event()
    held = [threading.Thread(target=_tab, args=(address, over), daemon=True) for _ in range(count)]
    for each in held:
        each.start()
    try:
        yield
    finally:
        over.set()
        for each in held:
            each.join(_TIMEOUT_S)


def _tab(address: str, over: threading.Event) -> None:
    with (
        contextlib.closing(http.client.HTTPConnection(address, timeout=_TIMEOUT_S)) as connection,
        contextlib.suppress(OSError, http.client.HTTPException),  # the dashboard ends
    ):
        connection.request("GET", "/events")
        stream = connection.getresponse()
        while not over.is_set() and (line := stream.readline()):
            if line.startswith(b"event: change"):
                _get(address, "/")


if __name__ == "__main__":
    main()
