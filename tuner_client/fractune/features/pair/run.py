"""Two that share a processor, timed alone and together: each in a process of its own, confined as a measurement is.

Core locks keep every other fractune process of this user away meanwhile. A round times blocks in an order that is the
same from both ends (alone, together, alone). So a slow change of the machine's speed affects all alike.
"""

from __future__ import annotations

import contextlib
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune.features.pair.arrangement import Arrangement, Place
from fractune.local.programs import require
from fractune_core.analysis.sharing import RoundTimes, mean_inside_s
from fractune_core.errors import FractuneError

_BLOCK_S, _CALLS = 0.4, 8
"""A block lasts so long, and at least so many inferences of the slower one; one alone is in two halves"""
_ATTEMPTS = 3
_LONGER = 4.0
"""so many times longer are the loops of the next attempt, and of the rounds after it"""
_WARM_S = 0.05
"""Calls before a block that do not count take so long, and are at least one"""
_LEAST_CALL_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Program:
    """What runs in one of the processes."""

    kind: str
    """`bundle` or `bubble`"""
    what: str
    """its file, or its MiB"""

    @property
    def is_model(self) -> bool:
        return self.kind == "bundle"

    @property
    def name(self) -> str:
        """`model`, `bubble:32MiB`"""
        return Path(self.what).stem if self.is_model else f"bubble:{self.what}MiB"


class Player:
    """A process at a place, that runs one program in a loop on request."""

    def __init__(self, program: Program, place: Place, turns: str, env: Mapping[str, str]) -> None:
        from fractune.inference.tvm_runtime.runtime import SPIN_COUNT, SPIN_YIELDS
        from fractune_workers.calibration.child_thread import ChildThread
        from fractune_workers.child import Child
        from fractune_workers.confinement import confinement_for

        self.program, self.place = program, place
        self.description: dict[str, Any] = {}
        """what runs, and `secs` of an inference: known once it is ready"""
        self._confinement = confinement_for(place.share, place.cores)
        self._confinement.probe()
        args = [str(place.share), ",".join(map(str, place.cores)), program.kind, program.what, turns]
        self._child = Child(
            "fractune.features.pair.child",
            args,
            # A thread of TVM's own default looks for more work for 0.3 s, on cores that are the neighbour's by then.
            {**env, SPIN_COUNT: SPIN_YIELDS, **self._confinement.environment()},
            before_kill=self._confinement.before_kill,
        )
        self.thread = ChildThread(self._end)

    @property
    def secs(self) -> float:
        """Of an inference, before anything was timed with care."""
        return float(self.description["secs"])

    @property
    def pid(self) -> int | None:
        """Of the process; None when there is none."""
        return self._child.pid

    @property
    def gpu_uuid(self) -> str | None:
        return self._confinement.gpu_uuid

    def call(self, method: str, expected_s: float, /, **payload: Any) -> Future[Any]:
        """What the process answers, which should take about `expected_s`. Raises what it raises."""
        timeout_s = _LEAST_CALL_TIMEOUT_S + 10 * expected_s
        return self.thread.submit(lambda: self._child.call(method, timeout_s, **payload))

    def _end(self) -> None:
        self._child.stop()
        self._confinement.leave()


class Stage:
    """The processes of an arrangement: both at their places, and each model on the whole."""

    def __init__(self, players: Sequence[Player], wholes: Sequence[Player], seed: int) -> None:
        self.players, self.wholes = tuple(players), tuple(wholes)
        self._random = random.Random(seed)
        self._stretch = 1.0
        """how many blocks a loop beside the other lasts: on the same cores they may be many times slower than alone"""

    def prepare(self) -> None:
        """Start everything, one after the other, and learn how long an inference takes."""
        for player in dict.fromkeys((*self.players, *self.wholes)):
            player.description = player.call("look", 0.0).result()

    @property
    def models(self) -> tuple[Player, ...]:
        return tuple(player for player in self.players if player.program.is_model)

    @property
    def block_s(self) -> float:
        """How long the loops of a round last, so that the slower one runs often enough in it."""
        return max(_BLOCK_S, _CALLS * max(player.secs for player in (*self.players, *self.wholes)))

    def time_round(self, number: int) -> tuple[RoundTimes, ...]:
        """One round; in every other one the middle blocks go the other way round. Of each model its times."""
        alone = tuple(dict.fromkeys((*self.wholes, *self.models)))
        halves = {player: [self._alone(player, self.block_s / 2)] for player in alone}
        if number % 2:
            together, controls = self._together(), [self._alone(player, self.block_s) for player in self.models]
        else:
            controls, together = [self._alone(player, self.block_s) for player in self.models], self._together()
        for player in reversed(alone):
            halves[player].append(self._alone(player, self.block_s / 2))
        means = {player: _mean_s(marks) for player, marks in halves.items()}
        wholes: list[float | None] = [means[player] for player in self.wholes]
        if not wholes:
            wholes = [None] * len(self.models)
        return tuple(
            RoundTimes(whole_s, means[player], _mean_s([control]), together[player])
            for player, whole_s, control in zip(self.models, wholes, controls, strict=True)
        )

    def serve(self, rates_per_s: Sequence[float], requests: int, most_s: float) -> list[list[float]]:
        """Latencies in seconds, by model, of requests that come at random at these rates: as many as the rarer needs
        for `requests`, within `most_s`. One of each model is under way at a time, and the others wait for it.
        """
        lasts_s = min(most_s, max(requests / rate for rate in rates_per_s))
        arrivals = [list(self._arrivals(rate, lasts_s)) for rate in rates_per_s]
        begin_s = self.begin_s()
        loops = [
            player.call("serve", lasts_s, begin_s=begin_s, arrivals_s=each)
            for player, each in zip(self.models, arrivals, strict=True)
        ]
        loops += [
            player.call("loop", lasts_s, phase_s=0.0, begin_s=begin_s, lasts_s=lasts_s)
            for player in self.players
            if player not in self.models
        ]
        return [loop.result() for loop in loops][: len(self.models)]

    def begin_s(self) -> float:
        """When a block of several programs may begin: all are warm by then."""
        return time.monotonic() + _WARM_S + 4 * max(player.secs for player in self.players)

    def _alone(self, player: Player, lasts_s: float) -> list[float]:
        begin_s = time.monotonic() + _WARM_S
        marks: list[float] = player.call("loop", lasts_s, phase_s=0.0, begin_s=begin_s, lasts_s=lasts_s).result()
        return marks

    def _together(self) -> dict[Player, float]:
        """Seconds of an inference of each model beside the other. Again, and for longer, when none of one's inferences
        lies inside the other's loop: that slow they are together, or a busy machine held one of them up.
        """
        lasts_s = self.block_s
        for _ in range(_ATTEMPTS):
            lasts_s = self.block_s * self._stretch
            found = self._side_by_side(lasts_s)
            if not any(math.isnan(found[player]) for player in self.models):
                return found
            self._stretch *= _LONGER
        names = " and ".join(player.program.name for player in self.players)
        raise FractuneError(
            f"{names} never ran beside each other in {_ATTEMPTS} loops of up to {lasts_s:.1f} s; is something else "
            "running on this machine? Try again when it is quiet"
        )

    def _side_by_side(self, lasts_s: float) -> dict[Player, float]:
        """Seconds of an inference of each, over those wholly inside the other's loop; not a number where there is none.

        They begin at random moments of each other's inference: two loops of equal length would else stay in step.
        """
        begin_s = self.begin_s()
        loops = [
            player.call(
                "loop",
                lasts_s,
                phase_s=self._random.uniform(0.0, player.secs),
                begin_s=begin_s,
                lasts_s=lasts_s,
            )
            for player in self.players
        ]
        marks = [loop.result() for loop in loops]
        spans = [(each[0], each[-1]) for each in marks]
        pairs = zip(self.players, marks, reversed(spans), strict=True)
        return {player: mean_inside_s(own, beside) for player, own, beside in pairs}

    def _arrivals(self, rate_per_s: float, lasts_s: float) -> Iterator[float]:
        """Random moments at a mean rate (Poisson), from 0 until `lasts_s`."""
        moment_s = self._random.expovariate(rate_per_s)
        while moment_s < lasts_s:
            yield moment_s
            moment_s += self._random.expovariate(rate_per_s)


@contextlib.contextmanager
def staged(
    programs: tuple[Program, Program], arrangement: Arrangement, seed: int, env: Mapping[str, str]
) -> Iterator[Stage]:
    """The processes of both, ready, with the device to themselves until the block ends.

    `env` tells them where our packages are. Raises ShareUnavailable, BadBundle, FractuneError when TVM is not
    installed.
    """
    require("worker", "tvm")
    from fractune_workers.calibration.child_thread import running

    with contextlib.ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="fractune-turns-"))

        def start(program: Program, place: Place) -> Player:
            turns = folder if arrangement.in_turn else ""
            return held.enter_context(running(Player(program, place, turns, env)))

        players = [start(program, place) for program, place in zip(programs, arrangement.places, strict=True)]
        wholes = []
        if arrangement.whole is not None:
            whole = arrangement.whole
            models = [player for player in players if player.program.is_model]
            wholes = [player if player.place == whole else start(player.program, whole) for player in models]
        held.enter_context(_device_of(arrangement, players[0].gpu_uuid))
        stage = Stage(players, wholes, seed)
        stage.prepare()
        yield stage


def time_sharing(stage: Stage, rounds: int, report_line: Callable[[str], None]) -> list[tuple[RoundTimes, ...]]:
    """The times of both models in each round; of one beside a neighbour that is no model."""
    found = []
    for number in range(rounds):
        began = time.monotonic()
        found.append(stage.time_round(number))
        if number == 0:
            report_line(f"{rounds} rounds of {time.monotonic() - began:.0f} s")
    return found


def _device_of(arrangement: Arrangement, gpu_uuid: str | None) -> contextlib.AbstractContextManager[Any]:
    """All that the arrangement runs on, for itself."""
    from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir
    from fractune_workers.locks.gpu_slots import ALONE

    locks = CoreLocks(default_lock_dir())
    if gpu_uuid is not None:
        return locks.measuring_on(gpu_uuid, ALONE, [])
    return locks.measuring({core for place in arrangement.places for core in place.cores})


def _mean_s(blocks: Sequence[Sequence[float]]) -> float:
    """Mean seconds of an iteration over blocks, each given by its marks."""
    return sum(marks[-1] - marks[0] for marks in blocks) / sum(len(marks) - 1 for marks in blocks)
