"""Slots on a GPU: measurements run side by side as long as their claims fit, or alone; first come, first served.

A folder for each GPU, with a file for each claim. Its holder locks it; the kernel frees the claims of a process that
dies. A claim waits in the turnstile until it fits, and later ones wait behind it. So trials that would still fit do not
overtake a validation that needs the GPU alone. A measurer may keep its claim for some pieces of work
(`fractune_workers.locks.gpu_slots`).
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from fractune_core.host.private_folders import open_plain
from fractune_core.shares import GrantedShare
from fractune_workers.locks.flock import is_locked, lock, locked

_LOOK_EVERY_S = 0.005
"""how soon the first one in the queue sees that a claim has ended; those behind it sleep in the kernel"""


@dataclass(frozen=True)
class Claim:
    """The part of a GPU that a measurement takes while it runs."""

    exclusion_group: str = ""
    """claims of one group may be held at the same time, claims of two never; empty = this one only alone"""
    units: int = 0
    """SMs that are capped and not reserved: all that are claimed at the same time have to fit into the GPU"""
    units_total: int = 0

    def fits(self, held: Collection[Claim]) -> bool:
        """Whether it may be held beside `held`, which are held together."""
        if not held:
            return True
        if not self.exclusion_group or any(other.exclusion_group != self.exclusion_group for other in held):
            return False
        return self.units + sum(other.units for other in held) <= self.units_total


ALONE = Claim()
"""the whole GPU, whatever the share: what is published was measured alone"""


def claim_of(granted: GrantedShare) -> Claim:
    """The claim of a measurement under the share. Reserved SMs are its own, and need no room beside others'."""
    if not granted.kind.side_by_side:
        return ALONE
    return Claim(granted.mechanism, 0 if granted.reserved else granted.units, granted.units_total)


@dataclass
class MeasurementSlot:
    """The time in which a measurement may run."""

    co_runners: int
    """other measurements beside it when it began; on a GPU, once it is over, the most at one time"""


class HeldClaim:
    """A claim that this process holds, until it closes it or ends."""

    def __init__(self, claim: Claim, folder: Path) -> None:
        self.claim = claim
        self.is_new = True
        """whether nothing has been measured under it"""
        self.path = folder / f"claim-{uuid.uuid4().hex}"
        self._file = self.path.open("x")
        lock(self._file)
        self._file.write(json.dumps(asdict(claim)))
        self._file.flush()

    def noted(self) -> list[int]:
        """How many others there were, whenever a claim was placed."""
        return [int(line) for line in self.path.read_text().splitlines()[1:]]

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self._file.close()


class GpuSlots:
    """The claims on the GPU `identity` (its UUID), in a folder below `directory`, which all workers of a host share."""

    def __init__(self, directory: Path, identity: str) -> None:
        self._folder = directory / f"gpu-{quote(identity, safe='')}"
        self._folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def holding(self, claim: Claim) -> Iterator[MeasurementSlot]:
        """Wait until `claim` fits beside those that are held, and hold it until the block ends or this process does."""
        held = self.hold(claim)
        try:
            with self._slot(held) as slot:
                yield slot
        finally:
            held.close()

    def hold(self, claim: Claim) -> HeldClaim:
        """Wait until `claim` fits beside those that are held, and hold it."""
        with locked(self._folder / "turnstile"):
            self._remove_dead()
            while not claim.fits((others := self._claims()).values()):
                time.sleep(_LOOK_EVERY_S)
            held = HeldClaim(claim, self._folder)
            _note_co_runners([held.path, *others], len(others))
        return held

    @contextlib.contextmanager
    def _slot(self, held: HeldClaim) -> Iterator[MeasurementSlot]:
        """The time of one measurement under a claim."""
        noted = held.noted()
        # The first begins where the claim was placed: others may have come since.
        slot = MeasurementSlot(noted[0] if held.is_new else len(self._claims()) - 1)
        began = 0 if held.is_new else len(noted)
        held.is_new = False
        try:
            yield slot
        finally:
            slot.co_runners = max([slot.co_runners, *held.noted()[began:]])

    # Only the process in the turnstile places a claim, removes one of another process, or writes into one.

    def _claims(self) -> dict[Path, Claim]:
        """Those that are held."""
        claims = {}
        for path in filter(is_locked, self._files()):
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                claims[path] = _read(path)
        return claims

    def _remove_dead(self) -> None:
        for path in self._files():
            if not is_locked(path):
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        return self._folder.glob("claim-*")


def _read(path: Path) -> Claim:
    try:
        return Claim(**json.loads(path.read_text().partition("\n")[0]))
    except (ValueError, TypeError):  # a measurer of another version holds it: nothing is known to fit beside it
        return ALONE


def _note_co_runners(paths: Iterable[Path], others: int) -> None:
    """Note in each claim how many others are beside it now: a line at the end of its file."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError), open_plain(path, "r+") as file:
            file.seek(0, 2)
            file.write(f"\n{others}")


# Turns on a GPU: a measurer keeps its claim from one piece of work to the next, for a bounded time.
#
# Beside measurers of small shares, one that needs the whole GPU would otherwise alternate with them piece by piece,
# and the GPU would empty each time. With turns each takes several pieces that wait in its queue. A turn ends with the
# first piece that ends after its time, or when no work waits (`WorkLoop`). New claims still wait behind those that
# came before, so no measurer starves.

TURN_S = 0.5
"""Longer turns have fewer but longer waits, and the GPU is idle between two pieces (`benchmarks.simulated_gpu`)"""


class GpuTurns(GpuSlots):
    """The slots of one measurer. Belongs to one thread."""

    def __init__(self, directory: Path, identity: str, turn_s: float = TURN_S) -> None:
        super().__init__(directory, identity)
        self._turn_s = turn_s
        self._kept: HeldClaim | None = None
        self._ends_s = 0.0
        """of the turn, in monotonic seconds"""

    @property
    def under_way(self) -> bool:
        """Whether a claim is held, perhaps between two pieces of work."""
        return self._kept is not None

    @contextlib.contextmanager
    def holding(self, claim: Claim) -> Iterator[MeasurementSlot]:
        """Hold `claim`, which may be held already; afterwards it is kept while the turn lasts, until `end`."""
        try:
            with self._slot(self._take(claim)) as slot:
                yield slot
        except BaseException:
            self.end()
            raise
        if self._is_over():
            self.end()

    def end(self) -> None:
        """End the turn: let others in."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _take(self, claim: Claim) -> HeldClaim:
        if self._kept is None or self._kept.claim != claim or self._is_over():
            self.end()
            self._kept = self.hold(claim)
            self._ends_s = time.monotonic() + self._turn_s
        return self._kept

    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends_s
