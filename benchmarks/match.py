"""The cost of matching a whole model at a share with a long log: `Matcher` as the server uses it.

The log is made up (benchmarks.support.match_log): a million records in SQLite, and a model of 1,000 operators. Cold
means a fresh process, a newly opened store, and the pages of its file dropped from the memory of the system; the time
runs from opening the store to the first answer. Warm means the later calls in the same process. The table also has the
processor time of the process, and its waiting time for a busy processor: on a busy machine they show the cost of the
call itself. gRPC, the writing of the answer, and the import of Python's modules are left out. No worker is there, so
the share is found in the log.

Usage: python -m benchmarks.match [--quick] [--out FILE] [--records N] [--operators N] [--keep FOLDER]
"""

import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import redis

from benchmarks.support import match_log
from benchmarks.support.machine import arguments, write_result
from fractune_core.analysis.match import How, Policy
from fractune_core.names import DEFAULT_TENANT
from fractune_server.main import call_context
from fractune_server.selection.model_match import Matcher, MatchQuery
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.store import Store, sqlite_url
from fractune_server.transport.context import ServerContext, TenantView
from tests.support.processes.redis_process import running_redis

WARM_BAR_S = 0.1
COLD_BAR_S = 2.0
TABLE = "table"
CASES = {How.EXACT: "cpu:4", How.NEAR: "cpu:5", How.ROBUST: "cpu:1", TABLE: "cpu:4,cpu:8"}
"""the request, and the share or shares; no share of the log is within a factor of 2 of cpu:1"""
_TIMES = ("cold_s", "cold_cpu_s", "cold_waited_s", "warm_s", "warm_cpu_s")
_WARM_CALLS = 7


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, help="in the log")
    parser.add_argument("--operators", type=int, help="of the model")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the log there, or use the one that is there")
    args = parser.parse_args()
    total = args.records or (20_000 if args.quick else 1_000_000)
    operators = args.operators or (100 if args.quick else 1_000)
    with running_redis() as url, tempfile.TemporaryDirectory(prefix="fractune-bench-") as made:
        folder = args.keep or Path(made)
        held = _fill(folder, total, operators)
        found = {case: _in_fresh_process(ask, folder, url, case, share) for case, share in CASES.items()}
    print(f"made-up log: {total} records, {held['bytes'] / 1e9:.1f} GB; a model of {operators} operators; seconds")
    print(f"{'':<8}" + "".join(f"{title:>12}" for title in ("cold", "CPU", "waited", "warm", "CPU", "grown, MB")))
    for case, row in found.items():
        times = "".join(f"{row[name]:>12.3f}" for name in _TIMES)
        print(f"{case:<8}{times}{row['grown_bytes'] / 1e6:>12.0f}")
    worst = {name: max(row[name] for case, row in found.items() if case != TABLE) for name in ("warm_s", "cold_s")}
    bars = {"warm_s": WARM_BAR_S, "cold_s": COLD_BAR_S}
    data = {"made_up": True, **held, "cases": found, "bars": bars}
    write_result("match", args, data)
    print(
        f"match: made-up log of {total} records, model of {operators} operators: warm {worst['warm_s']:.3f} s, "
        f"{worst['warm_s'] / WARM_BAR_S:.2f} of its bar of {WARM_BAR_S:g} s; cold {worst['cold_s']:.2f} s, "
        f"{worst['cold_s'] / COLD_BAR_S:.2f} of its bar of {COLD_BAR_S:g} s"
    )


def ask(folder: Path, redis_url: str, case: str, share: str) -> dict[str, float]:
    """Seconds of the first call from opening the store on, and of those after it (median); bytes that they kept."""
    _drop_pages(folder)
    before = _resident_bytes()
    wall, cpu, waited = time.perf_counter(), time.process_time(), _waited_s()
    store, connection = Store(sqlite_url(folder)), redis.Redis.from_url(redis_url)
    deps = ServerContext(store, connection, BlobStore(folder), b"made up")
    call = _call(Matcher(call_context(deps)), deps.view_of(DEFAULT_TENANT), case, share)
    call()
    cold = time.perf_counter() - wall, time.process_time() - cpu, _waited_s() - waited
    warm = [_timed(call) for _ in range(_WARM_CALLS)]
    grown = _resident_bytes() - before
    store.close()
    connection.close()
    return {
        "cold_s": cold[0],
        "cold_cpu_s": cold[1],
        "cold_waited_s": cold[2],
        "warm_s": statistics.median(wall for wall, _ in warm),
        "warm_cpu_s": statistics.median(cpu for _, cpu in warm),
        "grown_bytes": grown,
    }


def _call(matcher: Matcher, view: TenantView, case: str, share: str) -> Callable[[], None]:
    key = match_log.model_key(match_log.MODELS // 2)
    query = MatchQuery(key.model, key.inputs, key.target, None, "", view)

    def match() -> None:
        answers = matcher.match(query, share, Policy()).operators
        if {answer.match.how for answer in answers} - {case, How.NONE} or all(a.match.record is None for a in answers):
            raise SystemExit(f"match: not all answers at {share} are '{case}'")

    def tabulate() -> None:
        if any(len(row.cells) < 6 for row in matcher.tabulate(query, share.split(","))):
            raise SystemExit(f"match: the table of {share} has gaps")

    return tabulate if case == TABLE else match


def _timed(call: Callable[[], None]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def _fill(folder: Path, total: int, operators: int) -> dict[str, int]:
    """Make the log if it does not exist. Its contents, and its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "made-up.json"
    requested = {"records": total, "operators": operators}
    store = Store(sqlite_url(folder))
    if not note.exists():
        held = match_log.fill(store, total, operators)
        note.write_text(json.dumps({**requested, **held}) + "\n", encoding="ascii")
    store.close()
    found: dict[str, int] = json.loads(note.read_text(encoding="ascii"))
    if any(found[name] != requested[name] for name in requested):
        raise SystemExit(f"match: {folder} holds a log of {found}; name another folder")
    return {**found, "bytes": sum(path.stat().st_size for path in folder.glob("fractune.db*"))}


def _in_fresh_process(function: Callable[..., dict[str, float]], *args: object) -> dict[str, float]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def _drop_pages(folder: Path) -> None:
    for path in folder.glob("fractune.db*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _waited_s() -> float:
    """Seconds that this process was ready to run and had no processor."""
    return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
