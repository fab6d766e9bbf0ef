"""A simulated session on one GPU: how long measurers of two shares wait for each other, and for candidates.

Server, Redis, the roles of workers and their locks are real. Searches, builds and measurements sleep: measurements as
long as on an H200, builds too, and searches as long as here. The measurers are those of `fractune tune --shares
mps:25,full` on a host of 16 cores: four, and one for the whole GPU. No GPU is used, and none is needed.

Two questions: what turns on the GPU are worth (`fractune_workers.locks.gpu_slots`), in a session whose rounds are
large; and what a second searcher is worth, from the start of a job on.

Usage: python -m benchmarks.simulated_gpu [--quick] [--out FILE] [--seconds N] [--part turns|searchers]
"""

import contextlib
import logging
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.support.machine import arguments, write_result
from benchmarks.support.role_threads import Cores, Rates, RoleThread, builder, tuner
from benchmarks.support.timed_gpu import TimedGpu
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.shares import Share
from fractune_workers.context import WorkerContext
from fractune_workers.locks.gpu_slots import TURN_S, Claim, GpuSlots, GpuTurns, HeldClaim
from fractune_workers.roles import Role, measure
from fractune_workers.roles.measure import Measurer
from tests.support.hardware.simulated_session import TARGET
from tests.support.processes import fleet_simulated
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import Client, model_bytes, running_server

SMALL, WHOLE = "mps:25", "full"
MEASURERS = (WHOLE, SMALL, SMALL, SMALL, SMALL)
CORES = 11
"""for searches and builds, of 16: five launch kernels"""
SEARCH_S, SEARCH_THREADS_S = (0.17, 0.0034), (2.2, 0.021)
"""CPU seconds of a search for a convolution of ResNet-50, for a round and each candidate (`search_cost`, two cores)"""
_SEARCH_THREADS = 8
"""at most in a searcher"""
BUILD_S = 0.78
"""a product of 2048 x 2048 on the host of an H200 (benchmarks/results/gpu/operator.json)"""
QUICK_BUILD_S = 0.2
"""as if builds were four times as quick"""
_OPERATORS = 25
"""as many convolutions as ResNet-50 has"""
_TRIALS = 1_000_000
_HURRY, _HURRY_S = 20.0, 20.0
"""a session of large rounds begins so much faster, for so long"""
_TITLES = (
    *("candidates/s", "waits of 100", "quarters wait", "whole waits", "quarters idle", "whole idle"),
    *("builders", "searchers"),
)
_WAIT_S = 0.02
"""a shorter wait for the GPU does not count"""


@dataclass(frozen=True)
class Case:
    name: str
    turn_s: float = TURN_S
    searchers: int = 1
    build_s: float = BUILD_S
    large_rounds: bool = True


def turns(turn_s: float) -> Case:
    return Case(f"turns of {turn_s:g} s" if turn_s else "piece by piece", turn_s)


def searchers(count: int, build_s: float) -> Case:
    return Case(f"{count}, builds {build_s:g} s", searchers=count, build_s=build_s, large_rounds=False)


PARTS = {
    "turns": [turns(turn_s) for turn_s in (0.0, 0.5, 1.0, 2.0)],
    "searchers": [searchers(count, build_s) for build_s in (BUILD_S, QUICK_BUILD_S) for count in (1, 2)],
}


@dataclass
class Entries:
    """How long each entry to the GPU took."""

    secs: list[tuple[str, float]] = field(default_factory=list)

    def hold(self, real: Any, slots: GpuSlots, claim: Claim) -> HeldClaim:
        began_s = time.monotonic()
        held: HeldClaim = real(slots, claim)
        self.secs.append((_share_of(threading.current_thread().name), time.monotonic() - began_s))
        return held

    def waits(self, share: str) -> list[float]:
        return [secs for name, secs in self.secs if name == share and secs > _WAIT_S]


@dataclass
class Session:
    gpu: TimedGpu
    entries: Entries
    workers: list[RoleThread]

    def spent(self) -> dict[str, dict[str, float]]:
        """Seconds of work and of waiting for the GPU, by role or share, summed up over its workers; how many."""
        found = {name: defaultdict[str, float](float) for name in ("busy", "waited", "workers")}
        for worker in self.workers:
            of = _share_of(worker.context.name)
            found["busy"][of] += worker.busy_now_s()
            found["waited"][of] += worker.context.core_locks.waited_s
            found["workers"][of] += 1
        return dict(found)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, help="of each case")
    parser.add_argument("--part", choices=PARTS, help="one question only")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # each measurer would warn that it finds no GPU to read the clock of
    secs = args.seconds or (2.0 if args.quick else 40.0)
    rows: dict[str, dict[str, Any]] = {}
    for part in [args.part] if args.part else PARTS:
        print(f"simulated: {part}; {secs:g} s each")
        print(f"{'':<18}" + "".join(f"{title:>14}" for title in _TITLES))
        rows[part] = {}
        for case in PARTS[part][: 2 if args.quick else None]:
            rows[part][case.name] = row = run(case, secs, *(1.0, _HURRY) if args.quick else (_HURRY_S, 1.0))
            print(f"{case.name:<18}" + "".join(f"{each:>14}" for each in _figures(row)), flush=True)
    write_result("simulated_gpu", args, {"simulated": True, "seconds": secs, "runs": rows})
    print(verdict(rows))


def verdict(rows: dict[str, dict[str, Any]]) -> str:
    """One line: what turns and a second searcher change."""
    said = []
    if "turns" in rows:
        before, after = (rows["turns"][turns(turn_s).name] for turn_s in (0.0, TURN_S))
        said.append(f"turns: {after['waits_of_100']:.0f} waits of 100 candidates, {before['waits_of_100']:.0f} without")
    if "searchers" in rows:
        one, two = (rows["searchers"][searchers(count, BUILD_S).name] for count in (1, 2))
        said.append(
            f"two searchers: {two['candidates_per_s'] / one['candidates_per_s']:.2f} of the candidates/s of one"
        )
    return f"simulated_gpu, simulated: {'; '.join(said)}"


def _figures(row: dict[str, Any]) -> list[str]:
    parts = ("small_waits", "whole_waits", "small_idle", "whole_idle", "builders_busy", "searchers_busy")
    numbers = [f"{row['candidates_per_s']:.1f}", f"{row['waits_of_100']:.0f}"]
    return [*numbers, *(f"{row[name]:.0%}" for name in parts)]


def run(case: Case, secs: float, hurry_s: float, speed: float) -> dict[str, Any]:
    with session(case) as simulated:
        simulated.gpu.rates.speed = speed
        if case.large_rounds:
            simulated.gpu.rates.speed = _HURRY
            time.sleep(hurry_s)
            simulated.gpu.rates.speed = speed
            time.sleep(secs / 4)
        began_s, before = time.monotonic(), simulated.spent()
        simulated.entries.secs.clear()
        simulated.gpu.measured.clear()
        time.sleep(secs)
        measured, after = simulated.gpu.measured.copy(), simulated.spent()
        entries = Entries(list(simulated.entries.secs))
        took_s = time.monotonic() - began_s

    def part(name: str, of: str) -> float:
        return (after[name][of] - before[name][of]) / after["workers"][of] / took_s

    waits = {share: entries.waits(share) for share in (SMALL, WHOLE)}
    count = sum(map(len, waits.values()))
    return {
        **asdict(case),
        "candidates_per_s": min(measured[SMALL], measured[WHOLE]) / took_s,
        "measured": dict(measured),
        "waits": count,
        "waits_of_100": 100 * count / max(1, sum(measured.values())),
        "longest_wait_s": {share: max(waits[share], default=0.0) for share in waits},
        "small_waits": part("waited", SMALL),
        "whole_waits": part("waited", WHOLE),
        "small_idle": 1 - part("busy", SMALL),
        "whole_idle": 1 - part("busy", WHOLE),
        "builders_busy": part("busy", "build"),
        "searchers_busy": part("busy", "tune"),
    }


class Compiler(fleet_simulated.SimulatedWorker):
    """Says that a model is for the GPU."""

    target = target_key = TARGET


@contextlib.contextmanager
def session(case: Case) -> Iterator[Session]:
    """The session of a case, at work until the block ends."""
    rates = Rates(Cores(CORES), SEARCH_S, SEARCH_THREADS_S, _SEARCH_THREADS, case.build_s)
    simulated = Session(TimedGpu(rates=rates), Entries(), [])
    real = GpuSlots.hold

    def hold(slots: GpuSlots, claim: Claim) -> HeldClaim:
        return simulated.entries.hold(real, slots, claim)

    with contextlib.ExitStack() as held:
        held.enter_context(patch.object(measure, "MeasurementSession", simulated.gpu.session))
        held.enter_context(patch.object(measure, "GpuTurns", partial(GpuTurns, turn_s=case.turn_s)))
        held.enter_context(patch.object(GpuSlots, "hold", hold))
        url = held.enter_context(running_redis())
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="fractune-bench-")))
        server = held.enter_context(running_server(url, folder / "state"))
        client = held.enter_context(server.client())
        held.callback(Compiler(url, "compile", "compile-simulated").start().stop)
        wanted: list[tuple[str, str, Callable[[WorkerContext], Role]]] = [
            *[("tune", "tune", partial(tuner, rates))] * case.searchers,
            *[("build", "build", partial(builder, rates))] * CORES,
            *[("measure", share, partial(_measurer, share)) for share in MEASURERS],
        ]
        for number, (role, of, make) in enumerate(wanted):
            worker = RoleThread(url, f"{role}-{number}/{of}", role, folder, make)
            held.callback(worker.stop)
            simulated.workers.append(worker)
        _begin(client)
        wait_until(lambda: all(simulated.gpu.measured[share] for share in (SMALL, WHOLE)))
        yield simulated


def _measurer(share: str, context: WorkerContext) -> Measurer:
    return Measurer(context, Share.parse(share))


def _begin(client: Client) -> None:
    wait_until(lambda: len(client.fleet.ListShares(pb.ListSharesRequest()).shares) == len({*MEASURERS}))
    model = client.upload(model_bytes(*((f"operator_{number}", 1) for number in range(_OPERATORS))))
    client.create(model, trials=_TRIALS, shares=[SMALL, WHOLE])


def _share_of(worker: str) -> str:
    """Its role, or the share of a measurer: the end of its name."""
    return worker.rpartition("/")[2]


if __name__ == "__main__":
    main()
