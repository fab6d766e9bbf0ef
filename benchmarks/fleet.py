"""The number of GPUs that one server feeds, and its cost of a record: real server, Redis and store, simulated workers.

The workers are coroutines of this process (benchmarks.support.simulated_workers). Each GPU has a measurer, and two
tuner instances and three builders that keep it busy. They send the commands of real workers to Redis, and sleep as long
as the work took in a real log. One piece of work in 2,000 ends its worker like `kill -9`. After one in 1,000 a worker
is drained; each has a successor. Redis keeps its file like that of the one-machine stack. All of them share this
machine, so the simulation takes a part of it too; the output has that part.

Usage: python -m benchmarks.fleet [--quick] [--out FILE] [--gpus N,N] [--seconds N]
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from benchmarks.support import simulated_workers
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.server_figures import METRICS, Figures, Watch, quantile
from benchmarks.support.simulated_fleet import SimulatedFleet
from benchmarks.support.simulated_workers import SHARE, FleetLife
from fractune_core.fleet.messages import CPU_BATCH
from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes import fleet_simulated
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import Client, model_bytes, running_server

AIM_RECORDS_PER_S = 1000.0
AIM_LAG_S = 2.0
FED = 0.8
"""of what its measurers could do: with less the server does not keep a fleet busy"""
CRASHES, DRAINS = 2000, 1000
"""pieces of work for each"""
TUNERS, BUILDERS = 2, 3
"""for each GPU"""
_OPERATORS_A_GPU, _OPERATORS = 4, 120
"""operators for each GPU, and at most in one job"""
_TRIALS = 1_000_000
_HURRY = 3.0
"""times that work is faster at the start"""
_REDIS = ("--appendonly", "yes", "--appendfsync", "always", "--maxclients", "19000")
"""durable, and with room for two connections of each worker"""
_START_S = _CANCEL_S = 60.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gpus", help="numbers of simulated GPUs, one run for each")
    parser.add_argument("--seconds", type=float, help="of each run, after half as many again for the start")
    args = parser.parse_args()
    sizes = [int(size) for size in (args.gpus or ("2" if args.quick else "10,30,100,1000")).split(",")]
    secs, speed = args.seconds or (3.0 if args.quick else 30.0), 10.0 if args.quick else 1.0
    print(f"simulated GPUs and workers; {secs:g} s each")
    titles = ("records/s", "of full", "lag p50, s", "p99, s", "turn p99, s", "server", "Redis", "simulation", "back")
    print(f"{'GPUs':>6}" + "".join(f"{title:>12}" for title in titles) + "   CPU-ms a record")
    rows = {}
    for size in sizes:
        rows[size] = row = asyncio.run(run(size, secs, speed))
        cpu = row["cpu_ms_a_record"]
        figures = [f"{row['records_per_s']:.0f}", f"{row['fed']:.0%}"]
        figures += [f"{row[name]:.3f}" for name in ("lag_p50_s", "lag_p99_s", "turn_p99_s")]
        figures += [f"{cpu[name]:.2f}" for name in ("server", "redis", "simulation")] + [f"{row['requeued']:.0f}"]
        print(f"{size:>6}" + "".join(f"{figure:>12}" for figure in figures), flush=True)
    rates = {"crashes": CRASHES, "drains": DRAINS, "tuners": TUNERS, "builders": BUILDERS}
    aims = {"records_per_s": AIM_RECORDS_PER_S, "lag_s": AIM_LAG_S}
    write_result(
        "fleet", args, {"simulated": True, "rates": rates, "seconds": secs, "speed": speed, "runs": rows, "aims": aims}
    )
    print(verdict(rows))


def verdict(rows: dict[int, dict[str, Any]]) -> str:
    held = {size: row for size, row in rows.items() if row["lag_p99_s"] < AIM_LAG_S}
    best = max(held or rows, key=lambda size: rows[size]["records_per_s"])
    kept = [size for size, row in rows.items() if row["fed"] >= FED and size in held]
    knee = f"kept busy up to {max(kept)} of them" if kept else "kept none of these fleets busy"
    return (
        f"fleet: simulated GPUs: {rows[best]['records_per_s']:.0f} records/s at {best} of them, lag p99 "
        f"{rows[best]['lag_p99_s']:.2f} s (aim {AIM_RECORDS_PER_S:g} below {AIM_LAG_S:g} s); {knee}"
    )


async def run(gpus: int, secs: float, speed: float) -> dict[str, Any]:
    """Figures of one size: the mean over `secs` seconds, after half as many again for the start."""
    life = FleetLife(gpus, CRASHES, DRAINS, speed)
    with (
        running_redis(*_REDIS) as url,
        tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder,
        redis.Redis.from_url(url) as connection,
        running_server(url, Path(folder) / "state", metrics=METRICS) as server,
        server.client() as client,
    ):
        compiler = fleet_simulated.SimulatedWorker(url, "compile", "compile-simulated").start()
        fleet, watch = SimulatedFleet(url, life), Watch(server, connection)
        fleet.start(tune=TUNERS * gpus, build=BUILDERS * gpus, measure=gpus)
        try:
            jobs = await asyncio.to_thread(_create_jobs, client, gpus)
            life.speed = speed * _HURRY  # rounds grow with what was measured before: at first they are small
            await asyncio.sleep(secs)
            life.speed = speed
            await asyncio.sleep(secs / 2)
            before, done_before = await asyncio.to_thread(watch.read), life.done.copy()
            await asyncio.sleep(secs)
            after = await asyncio.to_thread(watch.read)
            fleet.check()
            done = life.done - done_before
            await asyncio.to_thread(_check, client, jobs)
        finally:
            await fleet.stop()
            compiler.stop()
    return {**figures_of(before, after), "fed": _rate(before, after) / full_rate(gpus, speed), "work": dict(done)}


def full_rate(gpus: int, speed: float) -> float:
    """Records per second of measurers that never wait."""
    return float(gpus * speed * CPU_BATCH / statistics.mean(simulated_workers.SECS["measure"]))


def figures_of(before: Figures, after: Figures) -> dict[str, Any]:
    records = max(1.0, after.records - before.records)
    spent = {name: after.cpu_s[name] - before.cpu_s[name] for name in after.cpu_s}
    return {
        "records_per_s": _rate(before, after),
        "lag_p50_s": quantile(before.lag, after.lag, 0.5),
        "lag_p99_s": quantile(before.lag, after.lag, 0.99),
        "turn_p50_s": quantile(before.turns, after.turns, 0.5),
        "turn_p99_s": quantile(before.turns, after.turns, 0.99),
        "requeued": after.requeued - before.requeued,
        "cpu_ms_a_record": {name: secs * 1e3 / records for name, secs in spent.items()},
        "cores": {name: secs / (after.at - before.at) for name, secs in spent.items()},
        "memory_bytes": after.memory_bytes,
        "redis_keys": after.keys,
    }


def _rate(before: Figures, after: Figures) -> float:
    return (after.records - before.records) / (after.at - before.at)


def _create_jobs(client: Client, gpus: int) -> list[str]:
    """Jobs with operators enough for every tuner instance, and trials without an end."""
    wanted = _OPERATORS_A_GPU * gpus
    names = []
    for first in range(0, wanted, _OPERATORS):
        count = min(_OPERATORS, wanted - first)
        model = client.upload(model_bytes(*((f"simulated_{first + number}", 1) for number in range(count))))
        names.append(_create(client, model))
    for name in names:
        client.wait(name, lambda job: job.state == pb.JOB_STATE_TUNING, _START_S)
    return names


def _create(client: Client, model: str) -> str:
    """As soon as the measurers are there."""
    deadline = time.monotonic() + _START_S
    while not client.fleet.ListShares(pb.ListSharesRequest()).shares and time.monotonic() < deadline:
        time.sleep(0.2)
    return client.create(model, trials=_TRIALS, shares=[SHARE]).name


def _check(client: Client, jobs: list[str]) -> None:
    """Raises SystemExit for a job that ended, or lost something to a crash; then cancels them."""
    for name in jobs:
        job = client.job(name)
        if job.state != pb.JOB_STATE_TUNING or job.progress.failures:
            raise SystemExit(f"fleet: {name} is {pb.JobState.Name(job.state)}: {job.message} {job.progress.failures}")
        client.jobs.CancelJob(pb.CancelJobRequest(name=name), timeout=_CANCEL_S)


if __name__ == "__main__":
    main()
