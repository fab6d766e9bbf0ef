"""The server under load, in three parts: real server, Redis and store; workers and their measurements are simulated.

- `clients`: 200 clients submit jobs, watch them to their end, and send other requests meanwhile, beside 50 workers.
  Measured are the duration of calls that end at once, the completeness of watches, and the growth of the server's
  memory and of Redis's keys.
- `watchers`: 1,000 watchers of one job, and one more.
- `page`: a page of 100 records of a made-up log of a million, newest or fastest first, while workers deliver 500
  records a second.

All of it runs on this one machine.

Usage: python -m benchmarks.service_load [--quick] [--out FILE] [--minutes N] [--part NAME,NAME] [--clients N]
           [--records N]
"""

import asyncio
import math
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import redis

from benchmarks.recorder_rate import measured_events
from benchmarks.support import match_log
from benchmarks.support.job_watchers import watch_together
from benchmarks.support.load_clients import LoadPlan, Observations, run_clients
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.server_figures import METRICS, Figures, Watch
from benchmarks.support.simulated_fleet import SimulatedFleet
from benchmarks.support.simulated_workers import SHARE, FleetLife
from fractune_core.fleet.redis_names import REPLAYED_FIELD, SERVER_STREAM
from fractune_core.fleet.signed_messages import seal_event, seal_replayed
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.services.jobs import MAX_WATCHERS
from tests.support.processes import fleet_simulated
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import Client, ServerProcess, model_bytes, running_server
from tests.support.secret import SECRET

PARTS = ("clients", "watchers", "page")
CALL_BAR_S, PAGE_BAR_S = 0.1, 0.05
GROWTH_BAR = 1.05
CLIENTS, WATCHERS = 200, 1000
WRITES_PER_S = 500
_WORKERS = {"tune": 8, "build": 20, "measure": 20}
_COMPILERS = 2
_SPEED = 4.0
"""times that simulated work is faster than in the log, so that 20 builders feed 20 measurers"""
_MODELS, _OPERATORS, _MORE = 5, 4, 16
_SAMPLE_EVERY_S = 5.0
_PAGE = 100
_DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, help="of the clients; the long form has 30")
    parser.add_argument("--clients", type=int, help="how many; 200 without it")
    parser.add_argument("--part", help=f"of {','.join(PARTS)}; all of them without it")
    parser.add_argument("--records", type=int, help="in the log for the pages")
    args = parser.parse_args()
    parts = (args.part or ",".join(PARTS)).split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--part {args.part}: write one or more of {','.join(PARTS)}")
    secs = 60 * (args.minutes or (0.1 if args.quick else 2.0))
    found: dict[str, Any] = {"simulated": True, "minutes": secs / 60}
    if "clients" in parts:
        count = args.clients or (10 if args.quick else CLIENTS)
        found["clients"] = clients(count, secs, 1.0 if args.quick else 20.0)
        _print_clients(found["clients"])
    if "watchers" in parts:
        found["watchers"] = watchers(20 if args.quick else WATCHERS)
        print("watchers: " + ", ".join(f"{name} {value}" for name, value in found["watchers"].items()))
    if "page" in parts:
        records = args.records or (20_000 if args.quick else 1_000_000)
        found["page"] = page(records, 3.0 if args.quick else 60.0)
        print(f"{'page, ms':<28}{'p50':>8}{'p99':>8}")
        for name, row in found["page"]["pages"].items():
            print(f"{name:<28}{row['p50_s'] * 1e3:>8.1f}{row['p99_s'] * 1e3:>8.1f}")
    found["bars"] = {"call_p99_s": CALL_BAR_S, "page_p99_s": PAGE_BAR_S, "growth": GROWTH_BAR}
    write_result("service_load", args, found)
    print(verdict(found))


def verdict(found: dict[str, Any]) -> str:
    texts = []
    if "clients" in found:
        part = found["clients"]
        texts.append(
            f"{part['clients']} clients: calls p99 {part['call_p99_s'] * 1e3:.0f} ms (bar {CALL_BAR_S * 1e3:g}), "
            f"{len(part['lost'])} events lost on {part['jobs']} watches, memory x{part['memory_growth']:.3f} and keys "
            f"x{part['keys_growth']:.3f} (bar {GROWTH_BAR:g})"
        )
    if "watchers" in found:
        part = found["watchers"]
        texts.append(
            f"{part['watchers']} watchers of one job, {part['told']} received its end in {part['end_s']:.1f} s"
        )
    if "page" in found:
        part = found["page"]
        worst = max(row["p99_s"] for row in part["pages"].values())
        texts.append(
            f"a page of {part['records']} made-up records p99 {worst * 1e3:.0f} ms (bar {PAGE_BAR_S * 1e3:g}) "
            f"beside {part['written_per_s']:.0f} records/s"
        )
    return "service_load, simulated workers: " + "; ".join(texts)


# ---- clients ---------------------------------------------------------------------------------------


def clients(count: int, secs: float, pause_s: float) -> dict[str, Any]:
    with (
        running_redis(*_DURABLE) as url,
        tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder,
        redis.Redis.from_url(url) as connection,
        running_server(url, Path(folder) / "state", metrics=METRICS) as server,
        server.client() as client,
        _compilers(url),
    ):
        watch = Watch(server, connection)
        seen, figures = asyncio.run(_under_load(url, server, client, watch, count, secs, pause_s))
    calls = [secs for method in seen.call_s.values() for secs in method]
    return {
        "clients": count,
        "workers": {**_WORKERS, "compile": _COMPILERS},
        "call_p50_s": quantile(calls, 0.5),
        "call_p99_s": quantile(calls, 0.99),
        "methods": {
            name: {"calls": len(found), "p50_s": quantile(found, 0.5), "p99_s": quantile(found, 0.99)}
            for name, found in sorted(seen.call_s.items())
        },
        "failed": dict(seen.failed),
        "jobs": seen.jobs,
        "messages": seen.messages,
        "lost": seen.lost,
        "behind_p99_s": quantile(seen.behind_s, 0.99),
        "records_per_s": (figures[-1].records - figures[0].records) / (figures[-1].at - figures[0].at),
        "cores": {
            name: (figures[-1].cpu_s[name] - figures[0].cpu_s[name]) / (figures[-1].at - figures[0].at)
            for name in figures[0].cpu_s
        },
        "memory_growth": growth([each.memory_bytes["server"] for each in figures]),
        "keys_growth": growth([each.keys for each in figures]),
        "history": [[round(each.at - figures[0].at), each.memory_bytes["server"], each.keys] for each in figures],
    }


async def _under_load(
    url: str, server: ServerProcess, client: Client, watch: Watch, count: int, secs: float, pause_s: float
) -> tuple[Observations, list[Figures]]:
    fleet = SimulatedFleet(url, FleetLife(speed=_SPEED))
    fleet.start(**_WORKERS)
    try:
        models = await asyncio.to_thread(_upload_models, client)
        load = LoadPlan(server.address, models, SHARE, count, secs, _MORE, pause_s)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            running = asyncio.get_running_loop().run_in_executor(pool, run_clients, load)
            figures = []
            while not running.done():
                figures.append(await asyncio.to_thread(watch.read))
                await asyncio.wait([running], timeout=min(_SAMPLE_EVERY_S, secs / 12))
            return await running, figures
    finally:
        await fleet.stop()


@contextmanager
def _compilers(url: str) -> Iterator[None]:
    made = [
        fleet_simulated.SimulatedWorker(url, "compile", f"compile-simulated-{number}").start()
        for number in range(_COMPILERS)
    ]
    try:
        yield
    finally:
        for each in made:
            each.stop()


def _upload_models(client: Client) -> list[str]:
    """When the measurers are there."""
    for _ in range(100):
        if client.fleet.ListShares(pb.ListSharesRequest()).shares:
            break
        time.sleep(0.1)
    names = [[f"simulated_{model}_{number}" for number in range(_OPERATORS)] for model in range(_MODELS)]
    return [client.upload(model_bytes(*((name, 1) for name in operators))) for operators in names]


def growth(held: Sequence[float]) -> float:
    """Mean of the last quarter over that of the second one, when everything has started."""
    quarter = len(held) // 4
    if not quarter:
        return math.nan
    return statistics.mean(held[-quarter:]) / statistics.mean(held[quarter : 2 * quarter])


def quantile(found: Sequence[float], part: float) -> float:
    """The smallest that so many are not above; NaN of none."""
    return sorted(found)[math.ceil(part * len(found)) - 1] if found else math.nan


def _print_clients(part: dict[str, Any]) -> None:
    print(f"{part['clients']} clients, {sum(part['workers'].values())} simulated workers, {part['jobs']} jobs")
    print(f"{'call':<16}{'calls':>8}{'p50, ms':>10}{'p99, ms':>10}")
    for name, row in part["methods"].items():
        print(f"{name:<16}{row['calls']:>8}{row['p50_s'] * 1e3:>10.1f}{row['p99_s'] * 1e3:>10.1f}")
    print(
        f"failed: {part['failed'] or 'none'}; lost: {part['lost'][:5] or 'none'}; {part['messages']} messages watched"
    )


# ---- watchers --------------------------------------------------------------------------------------


def watchers(most: int) -> dict[str, Any]:
    """Of a job that waits for a worker, so that only its end is reported."""
    with (
        running_redis(*_DURABLE) as url,
        tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder,
        redis.Redis.from_url(url) as connection,
        running_server(url, Path(folder) / "state", metrics=METRICS) as server,
        server.client() as client,
    ):
        measurer = fleet_simulated.SimulatedWorker(url, "measure", "measure-simulated", SHARE).start()
        try:
            watch = Watch(server, connection)
            job = client.create(_upload_models(client)[0], trials=8, shares=[SHARE]).name
            before = watch.read().memory_bytes["server"]
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                watching = pool.submit(watch_together, server.address, job, most)
                most_held = before
                while not watching.done():
                    most_held = max(most_held, watch.read().memory_bytes["server"])
                    time.sleep(0.1)
                crowd = watching.result()
        finally:
            measurer.stop()
    return {"allowed": MAX_WATCHERS, **asdict(replace(crowd, server_bytes=most_held - before))}


# ---- a page of a long log --------------------------------------------------------------------------


def page(records: int, secs: float) -> dict[str, Any]:
    with running_redis(*_DURABLE) as url, tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        state = Path(folder) / "state"
        match_log.filled_state(state, records, 100)
        with (
            redis.Redis.from_url(url) as connection,
            running_server(url, state, metrics=METRICS) as server,
            server.client() as client,
        ):
            watch, over = Watch(server, connection), threading.Event()
            writer = threading.Thread(target=_write, args=(connection, over))
            writer.start()
            try:
                time.sleep(secs / 6)  # until the server has taken up its pace
                before = watch.read()
                pages = _read_pages(client, secs)
                after = watch.read()
                if after.records == before.records:
                    raise SystemExit("service_load: nothing was written while the pages were read")
            finally:
                over.set()
                writer.join()
    return {
        "records": records,
        "written_per_s": (after.records - before.records) / (after.at - before.at),
        "pages": {
            name: {"calls": len(found), "p50_s": quantile(found, 0.5), "p99_s": quantile(found, 0.99)}
            for name, found in pages.items()
        },
        "server_cores": (after.cpu_s["server"] - before.cpu_s["server"]) / (after.at - before.at),
    }


def _read_pages(client: Client, secs: float) -> dict[str, list[float]]:
    """Seconds of each call, of four kinds alternately: the first page and the one after it, newest and fastest
    first.
    """
    found: dict[str, list[float]] = {}
    ends_at = time.monotonic() + secs
    while time.monotonic() < ends_at:
        for kind, fastest in (("newest", False), ("fastest", True)):
            token = ""
            for place in ("first page", "next page"):
                began = time.perf_counter()
                answer = client.log.ListRecords(
                    pb.ListRecordsRequest(page_size=_PAGE, page_token=token, fastest_first=fastest)
                )
                found.setdefault(f"{kind} first, {place}", []).append(time.perf_counter() - began)
                if len(answer.records) != _PAGE:
                    raise SystemExit(f"service_load: a page has {len(answer.records)} records")
                token = answer.next_page_token
    return found


def _write(connection: redis.Redis, over: threading.Event) -> None:
    """Results in the server's stream, at their pace: a tenth of a second's together."""
    events, due = measured_events(), time.monotonic()
    while not over.wait(max(0.0, due - time.monotonic())):
        due += 0.1
        with connection.pipeline(transaction=False) as pipe:
            for _ in range(WRITES_PER_S // 10):
                # As if an operator had requested it: it counts although no round waits for it.
                pipe.xadd(SERVER_STREAM, {REPLAYED_FIELD: seal_replayed(SECRET, seal_event(SECRET, next(events)))})
            pipe.execute()


if __name__ == "__main__":
    main()
