"""Two co-runners, placed on a processor, and timed alone and together, each in its own process under confinement.

Core locks keep every other fractune process of this user away meanwhile. The blocks of a round have a symmetric order
(alone, together, alone), so that a slow drift of the machine's speed affects all of them alike.
"""

import contextlib
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fractune.local.programs import require
from fractune_core.analysis.co_location import RoundTimes, mean_inside_s
from fractune_core.analysis.model_times import INTERLEAVED, OWN_UNITS, SAME_UNITS
from fractune_core.errors import BadRequest, FractuneError, ShareUnavailable
from fractune_core.host.cpus import CpuTopology
from fractune_core.host.machine import beside_others
from fractune_core.share_kinds import CPU
from fractune_core.shares import Share

_HALVES = "mps:50,mps:50"


@dataclass(frozen=True)
class Placement:
    """The share and cores of a process."""

    share: Share
    cores: tuple[int, ...] = ()
    """for a CPU share"""


@dataclass(frozen=True)
class Arrangement:
    """The placements of two co-runners on one processor."""

    kind: str
    """OWN_UNITS, SAME_UNITS or INTERLEAVED"""
    placements: tuple[Placement, Placement]
    whole: Placement | None
    """the units of both together; None where the whole cannot exist beside its parts"""

    @property
    def interleaved(self) -> bool:
        """Whether one waits while the other computes."""
        return self.kind == INTERLEAVED

    @property
    def is_verified(self) -> bool:
        """Whether this was ever tried on a device of this kind."""
        return self.placements[0].share.device_kind == CPU

    def __str__(self) -> str:
        if self.kind != OWN_UNITS:
            return f"both at {self.placements[0].share}, {'alternately' if self.interleaved else 'at the same time'}"
        shares = " + ".join(str(placement.share) for placement in self.placements)
        whole = f", of {self.whole.share}" if self.whole else ""
        return f"{shares}, each on its own{whole}"


def arrange(
    device_kind: str, *, shares: str | None, overlap: str | None, interleaved: bool, cores: Sequence[int]
) -> Arrangement:
    """The requested arrangement, by default half of the device for each; `cores` of the host may be used.

    `device_kind` is the device of the models: `cpu` or `cuda`. Raises BadRequest, and ShareUnavailable if both shares
    together exceed the machine.
    """
    if shares is not None and (overlap is not None or interleaved):
        raise BadRequest(
            "--shares names a share for each model, --overlap and --interleaved one for both; give one of them"
        )
    if shares is None and overlap is None and not interleaved and (device_kind != "cpu" or len(cores) > 1):
        shares = f"cpu:{len(cores) // 2},cpu:{len(cores) // 2}" if device_kind == "cpu" else _HALVES
    if shares is None:
        whole = f"cpu:{len(cores)}" if device_kind == "cpu" else "full"
        share = _served(overlap or whole, device_kind)
        placement = Placement(share, _taken([share], cores, str(share)))
        return Arrangement(INTERLEAVED if interleaved else SAME_UNITS, (placement, placement), placement)
    one, other = _two(shares, device_kind)
    taken = _taken([one, other], cores, shares)
    whole = one.kind.whole
    if whole and int(one.size) + int(other.size) > int(whole):
        raise ShareUnavailable(
            f"--shares {shares} exceed the whole GPU; request smaller shares, or one for both by --overlap"
        )
    first = Placement(one, taken[: one.host_cores])
    second = Placement(other, taken[len(first.cores) :])
    return Arrangement(OWN_UNITS, (first, second), _whole_of(first, second))


def usable_cores() -> list[int]:
    """The cores that this process may use, in order."""
    return sorted(os.sched_getaffinity(0))


def _two(text: str, device_kind: str) -> tuple[Share, Share]:
    named = [_served(part, device_kind) for part in text.split(",")]
    if len(named) != 2:
        raise BadRequest(f"--shares '{text}': name two, one for each, such as cpu:1,cpu:1")
    if named[0].mechanism != named[1].mechanism or not named[0].size:
        raise BadRequest(f"--shares '{text}': two parts of one device by one mechanism, such as mps:50,mps:50")
    return named[0], named[1]


def _served(text: str, device_kind: str) -> Share:
    share = Share.parse(text)
    if share.mechanism == "cpu-limit":
        raise BadRequest(
            f"share '{share}': a CPU limit reserves no cores, so a pair would measure the limits and not its models; "
            "measure them on cores (cpu:1,cpu:1, or --overlap cpu:2), and find each limit by fractune fit"
        )
    share.check_serves(device_kind)
    return share


def _taken(shares: Sequence[Share], cores: Sequence[int], requested: str) -> tuple[int, ...]:
    """Free cores, as many as CPU shares need (`CpuTopology.choose`); none for shares of a GPU."""
    if shares[0].device_kind != CPU:
        return ()
    count = sum(share.cores for share in shares)
    if count > len(cores):
        raise ShareUnavailable(
            f"{requested} takes {count} cores, and {len(cores)} may be used here; request smaller shares, or the same "
            "cores for both by --overlap"
        )
    return tuple(CpuTopology.read().choose(cores, count))


def _whole_of(first: Placement, second: Placement) -> Placement | None:
    """The units of both. A GPU has no whole while its instances or static partitions exist."""
    cores, kind = first.cores + second.cores, first.share.kind
    if cores:
        return Placement(Share("cpu", str(len(cores))), cores)
    return Placement(Share(kind.mechanism, kind.whole)) if kind.whole else None


_T = TypeVar("_T")
_BLOCK_S, _CALLS = 0.4, 8
"""least seconds of a block, and least inferences of the slower co-runner in it; a block alone is in two halves"""
_ATTEMPTS = 3
_LONGER = 4.0
"""factor by which the loops of the next attempt, and of the rounds after it, are longer"""
_WARM_S = 0.05
"""seconds of the calls before a block, which do not count; at least one call is made"""
_LEAST_CALL_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Program:
    """The program of a co-runner."""

    kind: str
    """`bundle` or `bubble`"""
    content: str
    """its file, or its MiB"""

    @property
    def is_model(self) -> bool:
        return self.kind == "bundle"

    @property
    def name(self) -> str:
        """`model`, `bubble:32MiB`"""
        return Path(self.content).stem if self.is_model else f"bubble:{self.content}MiB"


class CoRunner:
    """A confined process that runs one program in a loop on request."""

    def __init__(self, program: Program, placement: Placement, lock_folder: str, env: Mapping[str, str]) -> None:
        from fractune_core.cpu_limits import SPIN_COUNT, SPIN_YIELDS
        from fractune_workers.calibration.candidates import ChildThread
        from fractune_workers.child import Child
        from fractune_workers.confinement import confinement_for

        self.program, self.placement = program, placement
        self.description: dict[str, Any] = {}
        """the variant that runs, and `secs` of an inference; filled by `CoLocation.prepare`"""
        self._confinement = confinement_for(placement.share, placement.cores)
        self._confinement.probe()
        cores = ",".join(map(str, placement.cores))
        args = [str(placement.share), cores, program.kind, program.content, lock_folder]
        self._child = Child(
            "fractune.features.pair.child",
            args,
            # By default a thread of TVM looks for work for 0.3 s, on cores that the co-runner has by then.
            {**env, SPIN_COUNT: SPIN_YIELDS, **self._confinement.environment()},
            before_kill=self._confinement.before_kill,
        )
        self.thread = ChildThread(self._end)

    @property
    def secs(self) -> float:
        """Rough seconds of an inference."""
        return float(self.description["secs"])

    @property
    def pid(self) -> int | None:
        """Of the process; None if none is running."""
        return self._child.pid

    @property
    def gpu_uuid(self) -> str | None:
        return self._confinement.gpu_uuid

    def call(self, method: str, expected_s: float, /, **payload: Any) -> Future[Any]:
        """Have the process do `method`, which should take about `expected_s`. Raises the errors of the method."""
        timeout_s = _LEAST_CALL_TIMEOUT_S + 10 * expected_s
        return self.thread.submit(lambda: self._child.call(method, timeout_s, **payload))

    def _end(self) -> None:
        self._child.stop()
        self._confinement.leave()


class CoLocation:
    """The processes of an arrangement: both co-runners at their placements, and each model on the whole."""

    def __init__(self, co_runners: Sequence[CoRunner], wholes: Sequence[CoRunner], seed: int) -> None:
        self.co_runners, self.wholes = tuple(co_runners), tuple(wholes)
        self._random = random.Random(seed)
        self._stretch = 1.0
        """blocks that a loop together lasts: on the same cores the co-runners may be many times slower than alone"""

    def prepare(self) -> None:
        """Load the programs one after the other, and time an inference of each roughly."""
        for co_runner in dict.fromkeys((*self.co_runners, *self.wholes)):
            co_runner.description = co_runner.call("look", 0.0).result()

    @property
    def models(self) -> tuple[CoRunner, ...]:
        return tuple(co_runner for co_runner in self.co_runners if co_runner.program.is_model)

    @property
    def block_s(self) -> float:
        """Seconds of a loop in a round, long enough for several inferences of the slower co-runner."""
        return max(_BLOCK_S, _CALLS * max(co_runner.secs for co_runner in (*self.co_runners, *self.wholes)))

    def time_round(self, number: int) -> tuple[RoundTimes, ...]:
        """Time one round, with the middle blocks swapped in every other round; returns the times of each model."""
        alone = tuple(dict.fromkeys((*self.wholes, *self.models)))
        halves = {co_runner: [self._alone(co_runner, self.block_s / 2)] for co_runner in alone}
        if number % 2:
            together, controls = self._together(), [self._alone(co_runner, self.block_s) for co_runner in self.models]
        else:
            controls, together = [self._alone(co_runner, self.block_s) for co_runner in self.models], self._together()
        for co_runner in reversed(alone):
            halves[co_runner].append(self._alone(co_runner, self.block_s / 2))
        means = {co_runner: _mean_s(marks) for co_runner, marks in halves.items()}
        wholes: list[float | None] = [means[co_runner] for co_runner in self.wholes]
        if not wholes:
            wholes = [None] * len(self.models)
        return tuple(
            RoundTimes(whole_s, means[co_runner], _mean_s([control]), together[co_runner])
            for co_runner, whole_s, control in zip(self.models, wholes, controls, strict=True)
        )

    def serve(self, rates_per_s: Sequence[float], requests: int, most_s: float) -> list[list[float]]:
        """Latencies in seconds, by model, of requests that arrive at random at these rates. The test lasts until the
        model with the lower rate has `requests`, at most `most_s`. Each model serves one request at a time.
        """
        lasts_s = min(most_s, max(requests / rate for rate in rates_per_s))
        arrivals = [list(self._arrivals(rate, lasts_s)) for rate in rates_per_s]
        begin_s = self.begin_s()
        loops = [
            co_runner.call("serve", lasts_s, begin_s=begin_s, arrivals_s=each)
            for co_runner, each in zip(self.models, arrivals, strict=True)
        ]
        loops += [
            co_runner.call("loop", lasts_s, phase_s=0.0, begin_s=begin_s, lasts_s=lasts_s)
            for co_runner in self.co_runners
            if co_runner not in self.models
        ]
        return [loop.result() for loop in loops][: len(self.models)]

    def beside_others(self, run: Callable[[], _T]) -> tuple[_T, float]:
        """The result of `run`, and the cores of the arrangement that other programs had meanwhile; 0 on a GPU."""
        if self.co_runners[0].gpu_uuid is not None:
            return run(), 0.0
        cores = {core for each in self.co_runners for core in each.placement.cores}
        processes = dict.fromkeys((*self.co_runners, *self.wholes))
        return beside_others(run, cores, lambda: sum(each.call("cpu_s", 0.0).result() for each in processes))

    def begin_s(self) -> float:
        """A moment when all co-runners will be warm, for loops that start together."""
        return time.monotonic() + _WARM_S + 4 * max(co_runner.secs for co_runner in self.co_runners)

    def _alone(self, co_runner: CoRunner, lasts_s: float) -> list[float]:
        begin_s = time.monotonic() + _WARM_S
        marks: list[float] = co_runner.call("loop", lasts_s, phase_s=0.0, begin_s=begin_s, lasts_s=lasts_s).result()
        return marks

    def _together(self) -> dict[CoRunner, float]:
        """Seconds of an inference of each model beside its co-runner. If none of its inferences lies inside the
        co-runner's loop, the loops are repeated for longer: together they are slow, or a busy machine delayed one.
        """
        lasts_s = self.block_s
        for _ in range(_ATTEMPTS):
            lasts_s = self.block_s * self._stretch
            found = self._side_by_side(lasts_s)
            if not any(math.isnan(found[co_runner]) for co_runner in self.models):
                return found
            self._stretch *= _LONGER
        names = " and ".join(co_runner.program.name for co_runner in self.co_runners)
        raise FractuneError(
            f"{names} never ran together in {_ATTEMPTS} loops of up to {lasts_s:.1f} s; is something else running on "
            "this machine? Try again when it is quiet"
        )

    def _side_by_side(self, lasts_s: float) -> dict[CoRunner, float]:
        """Seconds of an inference of each, over those wholly inside the co-runner's loop; NaN if there are none.

        Each begins at a random phase of the other's inference: otherwise two loops of equal length would stay in step.
        """
        begin_s = self.begin_s()
        loops = [
            co_runner.call(
                "loop", lasts_s, phase_s=self._random.uniform(0.0, co_runner.secs), begin_s=begin_s, lasts_s=lasts_s
            )
            for co_runner in self.co_runners
        ]
        marks = [loop.result() for loop in loops]
        spans = [(each[0], each[-1]) for each in marks]
        pairs = zip(self.co_runners, marks, reversed(spans), strict=True)
        return {co_runner: mean_inside_s(own, span) for co_runner, own, span in pairs}

    def _arrivals(self, rate_per_s: float, lasts_s: float) -> Iterator[float]:
        """Random moments at a mean rate (Poisson), from 0 until `lasts_s`."""
        moment_s = self._random.expovariate(rate_per_s)
        while moment_s < lasts_s:
            yield moment_s
            moment_s += self._random.expovariate(rate_per_s)


@contextlib.contextmanager
def co_located(
    programs: tuple[Program, Program], arrangement: Arrangement, seed: int, env: Mapping[str, str]
) -> Iterator[CoLocation]:
    """The processes of both programs, ready, with the device to themselves until the block ends.

    `env` says where our packages are. Raises ShareUnavailable, BadBundle, FractuneError when TVM is not
    installed.
    """
    require("worker", "tvm")
    from fractune_workers.calibration.candidates import running

    with contextlib.ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="fractune-alternation-"))

        def start(program: Program, placement: Placement) -> CoRunner:
            lock_folder = folder if arrangement.interleaved else ""
            return held.enter_context(running(CoRunner(program, placement, lock_folder, env)))

        both = zip(programs, arrangement.placements, strict=True)
        co_runners = [start(program, placement) for program, placement in both]
        wholes = []
        if arrangement.whole is not None:
            whole = arrangement.whole
            models = [co_runner for co_runner in co_runners if co_runner.program.is_model]
            wholes = [
                co_runner if co_runner.placement == whole else start(co_runner.program, whole) for co_runner in models
            ]
        held.enter_context(_device_of(arrangement, co_runners[0].gpu_uuid))
        prepared = CoLocation(co_runners, wholes, seed)
        prepared.prepare()
        yield prepared


def time_rounds(both: CoLocation, rounds: int, report_line: Callable[[str], None]) -> list[tuple[RoundTimes, ...]]:
    """The times of the models in each round."""
    found = []
    for number in range(rounds):
        began = time.monotonic()
        found.append(both.time_round(number))
        if number == 0:
            report_line(f"{rounds} rounds of {time.monotonic() - began:.0f} s")
    return found


def _device_of(arrangement: Arrangement, gpu_uuid: str | None) -> contextlib.AbstractContextManager[Any]:
    """Locks on everything that the arrangement runs on."""
    from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir
    from fractune_workers.locks.gpu_slots import ALONE, GpuSlots

    locks = CoreLocks(default_lock_dir())
    if gpu_uuid is not None:
        return locks.measuring_on(GpuSlots(locks.directory, gpu_uuid), ALONE, [])
    return locks.measuring({core for placement in arrangement.placements for core in placement.cores})


def _mean_s(blocks: Sequence[Sequence[float]]) -> float:
    """Mean seconds of an iteration over blocks, each given by its marks."""
    return sum(marks[-1] - marks[0] for marks in blocks) / sum(len(marks) - 1 for marks in blocks)
