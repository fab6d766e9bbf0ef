"""The cost of the service beside building and running candidates: the queue, the recorder, the scheduler, all of it.

End to end: a real Redis and a real server process. The workers are simulated and answer at once, in threads of this
process, so their part is in the figure as well. The queue: benchmarks.queue_cost. The recorder: records from a stream
into SQLite. The scheduler: a decision with many open operators and a large fleet, at three sizes, so that its growth
shows. A call of a tiny model: benchmarks.call_cost.
Usage: python -m benchmarks.overhead [--quick] [--out FILE] [--trials N] [--records N]
"""

import statistics
import tempfile
from pathlib import Path

from benchmarks import call_cost, queue_cost
from benchmarks.recorder_rate import records_per_s
from benchmarks.scheduler_cost import SHARE, costs_ms
from benchmarks.support.machine import arguments, write_result
from fractune_core.fleet.messages import CPU_BATCH
from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import model_bytes, running_server

TRIAL_BAR_MS = 20.0
QUEUE_BAR_MS = queue_cost.LIMIT_MS
RECORDS_BAR = 2000.0
"""records/s"""
DECISION_BAR_MS = 5.0
MEASURERS = 100
_OPERATORS = 20
_JOB_TIMEOUT_S = 900.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trials", type=int, help="of the job, end to end")
    parser.add_argument("--records", type=int, help="through the recorder")
    args = parser.parse_args()
    trials = args.trials or (200 if args.quick else 2000)
    records = args.records or (1000 if args.quick else 10_000)
    sizes = (50, 100, 200) if args.quick else (250, 500, 1000)
    service = ms_per_trial(trials)
    print(f"end to end, {trials} trials: {service['tuning']:.2f} ms a trial while tuning, {service['job']:.2f} in all")
    queue = statistics.median(queue_cost.costs_of(*((64, 2) if args.quick else (512, 5)))[CPU_BATCH])
    print(f"queue: {queue:.2f} ms a candidate in batches of {CPU_BATCH}")
    rate = records_per_s(records)
    print(f"recorder: {rate:.0f} records/s over {records}")
    calls_us = call_cost.call_costs_us(4 if args.quick else 200)
    print(", ".join(f"{name} {cost_us:.1f} us" for name, cost_us in calls_us.items()))
    scheduler = {size: costs_ms(size, min(MEASURERS, size)) for size in sizes}
    _print_scheduler(scheduler)
    bars = {"trial_ms": TRIAL_BAR_MS, "queue_ms": QUEUE_BAR_MS, "records_per_s": RECORDS_BAR}
    data = {"trials": trials, "ms_per_trial": service, "queue_ms": queue, "records": records, "records_per_s": rate}
    data["calls_us"] = calls_us
    bars |= {"decision_ms": DECISION_BAR_MS, "call_us": call_cost.LIMIT_US}
    write_result("overhead", args, {**data, "measurers": MEASURERS, "scheduler_ms": scheduler, "bars": bars})
    decision = scheduler[sizes[-1]]["decision"]
    print(
        f"overhead: {service['tuning']:.1f} ms a trial (bar {TRIAL_BAR_MS:g}), queue {queue:.2f} ms "
        f"(bar {QUEUE_BAR_MS:g}), recorder {rate:.0f} records/s (bar {RECORDS_BAR:g}), a call {calls_us['run']:.1f} us "
        f"(bar {call_cost.LIMIT_US:g}), a decision with "
        f"{sizes[-1]} operators {decision:.2f} ms (bar {DECISION_BAR_MS:g})"
    )


def ms_per_trial(trials: int) -> dict[str, float]:
    """Milliseconds of a job over its trials: `tuning`, from the first round to the last result; `job`, all of it."""
    model = model_bytes(*((f"operator{index}", 1 + index % 4) for index in range(_OPERATORS)))
    with (
        running_redis() as url,
        tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder,
        simulated_fleet(url),
        running_server(url, Path(folder) / "state") as server,
        server.client() as client,
    ):
        created = client.create(client.upload(model), trials=trials, shares=[SHARE])
        job = client.finish(created.name, _JOB_TIMEOUT_S)
    if job.state != pb.JOB_STATE_DONE or job.progress.candidates_done != trials:
        raise SystemExit(f"overhead: the job ended with {job.progress.candidates_done} trials: {job.message}")
    return {"tuning": 1e3 / job.progress.trials_per_s, "job": job.result.wall_s * 1e3 / trials}


def _print_scheduler(found: dict[int, dict[str, float]]) -> None:
    sizes = list(found)
    print(f"{f'scheduler, ms; {MEASURERS} measurers at most':<36}" + "".join(f"{f'{n} operators':>16}" for n in sizes))
    for step in found[sizes[0]]:
        print(f"{step:<36}" + "".join(f"{found[size][step]:>16.3f}" for size in sizes) + f"  {_growth(found, step)}")


def _growth(found: dict[int, dict[str, float]], step: str) -> str:
    """The change of the time with the last doubling of the operators; 2 would be linear."""
    before, last = list(found)[-2:]
    return f"x{found[last][step] / found[before][step]:.1f} for x{last / before:.1f} operators"


if __name__ == "__main__":
    main()
