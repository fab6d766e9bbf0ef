"""Many tenants on one server: records/s, fairness and the time of a list of jobs; simulated workers, real the rest.

Fifty tenants with weights from 1 to 5 have four jobs each, which want more trials than anybody can measure. The workers
are those of `benchmarks.fleet`. A tenant's part of the trials that were handed out is compared with its part of the
weights. One tenant lists its jobs again and again meanwhile.

Usage: python -m benchmarks.tenants [--quick] [--out FILE] [--tenants N] [--workers N] [--seconds N]
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from benchmarks.fleet import BUILDERS, CRASHES, DRAINS, TUNERS, figures_of, full_rate
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.server_figures import METRICS, Watch
from benchmarks.support.simulated_fleet import SimulatedFleet
from benchmarks.support.simulated_workers import SHARE, FleetLife
from fractune_core.access import Quotas, Reach, Scope
from fractune_core.jobs import Priority
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.admin import Admin
from tests.processes.test_access import client_credentials
from tests.support.certificates import Authority
from tests.support.processes import fleet_simulated
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import Client, model_bytes, running_server

AIM_OFF = 0.05
"""of a tenant's part, at most"""
AIM_RECORDS_PER_S, AIM_LAG_S = 1000.0, 1.0
MOST_WEIGHT = 5
_JOBS, _OPERATORS, _TRIALS = 4, 6, 1_000_000
"""for each tenant, in each job, and for each job"""
_REDIS = ("--appendonly", "yes", "--appendfsync", "always", "--maxclients", "19000")
_START_S = 120.0
_FULL_RATE = 300.0
"""records/s of all measurers: slower ones, so that they are what everybody waits for, and not the server"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tenants", type=int, help="number of tenants")
    parser.add_argument("--workers", type=int, help="number of simulated workers")
    parser.add_argument("--seconds", type=float, help="of the measured time, after as many for the start")
    args = parser.parse_args()
    tenants, workers = args.tenants or (4 if args.quick else 50), args.workers or (24 if args.quick else 1000)
    row = asyncio.run(run(tenants, workers, args.seconds or (5.0 if args.quick else 60.0)))
    print(f"{'tenant':>10}{'weight':>8}{'part of trials':>16}{'of weights':>12}{'off':>8}")
    for each in row["parts"]:
        off = each["got"] / each["due"] - 1
        print(f"{each['tenant']:>10}{each['weight']:>8}{each['got']:>16.2%}{each['due']:>12.2%}{off:>8.1%}")
    aims = {"off": AIM_OFF, "records_per_s": AIM_RECORDS_PER_S, "lag_s": AIM_LAG_S}
    write_result("tenants", args, {"simulated": True, "tenants": tenants, "workers": workers, "aims": aims, **row})
    cpu, megabytes = row["cpu_ms_a_record"], row["memory_bytes"]["server"] / 1e6
    print(
        f"server: {cpu['server']:.2f} CPU-ms a record, {megabytes:.0f} MB; "
        f"Redis {cpu['redis']:.2f} CPU-ms; simulation {row['cores']['simulation']:.2f} cores"
    )
    print(
        f"tenants: {tenants} tenants, {_JOBS * tenants} jobs, {workers} simulated workers: {row['records_per_s']:.0f} "
        f"records/s, lag p99 {row['lag_p99_s']:.2f} s, a tenant is off its weight by at most {row['off']:.1%} (aim "
        f"{AIM_OFF:.0%}), ListJobs p99 {row['list_p99_s'] * 1e3:.0f} ms"
    )


async def run(tenants: int, workers: int, secs: float) -> dict[str, Any]:
    gpus = max(1, workers // (TUNERS + BUILDERS + 1))
    speed = min(1.0, _FULL_RATE / full_rate(gpus, 1.0))
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(running_redis(*_REDIS))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fractune-bench-")))
        authority = Authority.make(folder / "authority")
        pair = authority.issue("server", "localhost", "127.0.0.1")
        tls = {"cert": str(pair.cert), "key": str(pair.key)}
        options = {"tls": tls, "local_socket": str(folder / "s"), "metrics": METRICS}
        server = stack.enter_context(running_server(url, folder / "state", **options))
        weights = {f"t{number:02}": 1 + number % MOST_WEIGHT for number in range(tenants)}
        clients: dict[str, Client] = {}
        for name, weight in weights.items():
            Admin(folder / "state").create_tenant(name, Quotas(), weight)
            quotas = Quotas()
            token = Admin(folder / "state").create_token(name, Scope.SUBMIT, None, quotas, Priority.NORMAL, Reach(name))
            client = Client(server.address, client_credentials(authority, token))
            clients[name] = stack.enter_context(client)
        compiler = fleet_simulated.SimulatedWorker(url, "compile", "compile-simulated").start()
        stack.callback(compiler.stop)
        fleet = SimulatedFleet(url, FleetLife(gpus, CRASHES, DRAINS, speed))
        watch = Watch(server, stack.enter_context(redis.Redis.from_url(url)))
        fleet.start(tune=TUNERS * gpus, build=BUILDERS * gpus, measure=gpus)
        try:
            await asyncio.to_thread(_create_jobs, clients)
            await asyncio.sleep(secs)
            before, had = await asyncio.to_thread(watch.read), await asyncio.to_thread(_trials, clients)
            lists = asyncio.create_task(asyncio.to_thread(_list_times, next(iter(clients.values())), secs))
            await asyncio.sleep(secs)
            after, has = await asyncio.to_thread(watch.read), await asyncio.to_thread(_trials, clients)
            fleet.check()
            times = await lists
        finally:
            await fleet.stop()
    got = {name: has[name] - had[name] for name in weights}
    whole, sum_of_weights = max(1, sum(got.values())), sum(weights.values())
    parts: list[dict[str, Any]] = [
        {"tenant": name, "weight": weight, "got": got[name] / whole, "due": weight / sum_of_weights}
        for name, weight in weights.items()
    ]
    return {
        **figures_of(before, after),
        "parts": parts,
        "off": max(abs(each["got"] / each["due"] - 1) for each in parts),
        "list_p99_s": statistics.quantiles(times, n=100)[98],
        "lists": len(times),
    }


def _create_jobs(clients: dict[str, Client]) -> None:
    one = next(iter(clients.values()))
    wait_until(lambda: one.fleet.ListShares(pb.ListSharesRequest()).shares, _START_S)
    jobs = []
    for name, client in clients.items():
        operators = [(f"simulated_{name}_{number}", 1) for number in range(_OPERATORS)]
        model = client.upload(model_bytes(*operators))
        jobs += [(client, client.create(model, trials=_TRIALS, shares=[SHARE]).name) for _ in range(_JOBS)]
    for client, job in jobs:
        client.wait(job, lambda found: found.state == pb.JOB_STATE_TUNING, _START_S)


def _trials(clients: dict[str, Client]) -> dict[str, int]:
    """Of each tenant so far."""
    return {
        name: sum(job.progress.candidates_done for job in client.jobs.ListJobs(pb.ListJobsRequest()).jobs)
        for name, client in clients.items()
    }


def _list_times(client: Client, secs: float) -> list[float]:
    times, end = [], time.monotonic() + secs
    while time.monotonic() < end:
        began = time.perf_counter()
        client.jobs.ListJobs(pb.ListJobsRequest())
        times.append(time.perf_counter() - began)
        time.sleep(0.05)
    return times


if __name__ == "__main__":
    main()
