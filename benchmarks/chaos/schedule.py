"""The schedule of kills: process and moment, drawn from a seed."""

import collections
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

STACK, REDIS = "stack", "redis"
WEIGHTS = {
    STACK: 1,
    REDIS: 2,
    "server": 4,
    "tuner": 3,
    "builder": 4,
    "measurer": 6,
    "compiler": 3,
    "tuner's child": 3,
    "builder's child": 4,
    "builder's fork": 6,
    "measurer's child": 6,
    "compiler's child": 6,
}
"""kinds of victims, and how often one is wanted beside the others. The recorder is a thread of the server and dies with
it; `stack` is `fractune up` itself, with which everything dies at once."""
_KILLS_A_MINUTE = 4
"""of one part: `fractune up` gives up a part that dies more often than 5 times in a minute, by design"""
_CHILD_KILLS_A_MINUTE = 2
"""of the children of one process: the third kill in a row counts against its work, by design"""


@dataclass(frozen=True)
class Kill:
    """One kill, as planned."""

    wait_s: float
    """since the one before"""
    wanted: tuple[str, ...]
    """kinds of victims: the first that has a living process is struck"""
    pick: float
    """0 .. 1: which of several processes of the kind"""


def kills(seed: int, every_s: float) -> Iterator[Kill]:
    """Kills without end, in the mean one in `every_s` seconds; the same seed plans the same ones."""
    rng = random.Random(seed)
    while True:
        yield Kill(rng.uniform(0.25, 1.75) * every_s, _order(rng), rng.random())


def _order(rng: random.Random) -> tuple[str, ...]:
    """All kinds, drawn one after the other by their weights (Efraimidis and Spirakis, Information Processing Letters
    97, 2006).
    """
    return tuple(sorted(WEIGHTS, key=lambda kind: rng.random() ** (1 / WEIGHTS[kind]), reverse=True))


@dataclass(frozen=True)
class Victim:
    """A process that may be killed."""

    pid: int
    kind: str
    part: str = ""
    """the part of the stack that dies by it; empty for what a worker replaces by itself"""
    parent: int = 0
    """process id of what started it, for such a child"""


class Limits:
    """The number of kills of each part in the last minute. Redis may take the workers with it, the stack takes all."""

    def __init__(self) -> None:
        self._killed: dict[str | int, collections.deque[float]] = collections.defaultdict(collections.deque)
        """moments of kills, by part, and by parent process"""

    def note(self, victim: Victim, now_s: float) -> None:
        if victim.kind == STACK:  # a new process counts from zero
            self._killed.clear()
        self._killed[victim.part or victim.parent].append(now_s)

    def allows(self, victim: Victim, now_s: float) -> bool:
        if not victim.part:
            return self._count(victim.parent, now_s) < _CHILD_KILLS_A_MINUTE
        if victim.kind == STACK:  # which lives while the others are still to come
            return not self._count(STACK, now_s)
        of_redis = self._count(REDIS, now_s)
        parts = [part for part in self._killed if isinstance(part, str)]
        others = max((self._count(part, now_s) for part in parts), default=0)
        mine = others if victim.kind == REDIS else self._count(victim.part, now_s) + of_redis
        return mine < _KILLS_A_MINUTE

    def _count(self, name: str | int, now_s: float) -> int:
        struck = self._killed[name]
        while struck and now_s - struck[0] > 60:
            struck.popleft()
        return len(struck)


def choose(kill: Kill, living: Mapping[str, Sequence[Victim]], limits: Limits, now_s: float) -> Victim | None:
    """Whom the kill strikes among the `living`, by kind; None if no process exists."""
    for kind in kill.wanted:
        allowed = [victim for victim in living.get(kind, ()) if limits.allows(victim, now_s)]
        if allowed:
            return allowed[int(kill.pick * len(allowed))]
    return None
