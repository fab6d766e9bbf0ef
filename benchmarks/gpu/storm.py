"""A storm of faults on a real GPU: one candidate in twenty reads an illegal address, hangs, or corrupts memory.

The candidates go through the sessions of four measurers side by side, as a search's do. A trial looks at no output, so
it does not find a candidate that corrupts the memory of its own process: the validation must find it. Run it in a
separate process: python -m benchmarks.gpu.storm --out FILE [--candidates 120] [--share mps:25] [--measurers 4] [--seed
0]. The part `faults` of the suite runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.faulty import ADDRESS, ARGS_INFO, CORRUPT, FAULTS, GOOD, HANG
from benchmarks.support.machine import write_json
from fractune_core.errors import FractuneError
from fractune_core.records import Status
from fractune_core.shares import Share
from fractune_workers.child import Child
from fractune_workers.gpu.nvml import open_nvml, visible_gpu
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession, Outcome
from fractune_workers.measuring.validation import validate

GUILTY_ONE_IN = 20
_BATCH = 4
_BUILDERS_AT_MOST = 8
_BUILD_TIMEOUT_S = 120.0
_EXPECTED = {
    GOOD: {Status.OK},
    ADDRESS: {Status.CRASHED, Status.RUN_FAILED},
    HANG: {Status.RUN_TIMEOUT},
    CORRUPT: {Status.OK},
}
"""how a trial of each kind may end"""
_UNTUNED = "untuned"
_FINAL_GOOD = 3
"""good candidates beside the corrupting ones in the validation"""


@dataclass(frozen=True)
class Verdict:
    """The outcomes of the candidates."""

    candidates: int
    accounted: int
    """with just one outcome"""
    guilty_named: int
    guilty: int
    innocent_blamed: int
    wrong: tuple[str, ...]
    """each candidate that ended in another way than it had to"""

    @property
    def is_good(self) -> bool:
        return self.accounted == self.candidates and not self.wrong


def main() -> None:
    args = _parse()
    kinds = storm(args.candidates, args.seed)
    began = time.monotonic()
    codes = build_all(kinds, f"cuda:{visible_gpu(open_nvml().gpus()).arch}")
    built = time.monotonic()
    print(f"{len(codes)} candidates built in {built - began:.0f} s", flush=True)
    share = Share.parse(args.share)
    trials = _race_all(share, args.measurers, codes)
    raced = time.monotonic()
    finals = _final(share, kinds, codes)
    verdict = judged(kinds, trials, finals)
    report = {
        "share": args.share,
        "measurers": args.measurers,
        "kinds": Counter(kinds.values()),
        "verdict": {**vars(verdict), "is_good": verdict.is_good},
        "build_s": built - began,
        "trials_s": raced - built,
        "finals_s": time.monotonic() - raced,
        "trials": {name: _told(kinds[name], outcomes) for name, outcomes in trials.items()},
        "finals": {name: _told(kinds.get(name, GOOD), [outcome]) for name, outcome in finals.items()},
    }
    write_json(args.out, report)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="write the JSON here")
    parser.add_argument("--candidates", type=int, default=120)
    parser.add_argument("--share", default="mps:25")
    parser.add_argument("--measurers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def storm(candidates: int, seed: int) -> dict[str, str]:
    """The fault of each candidate, by name; at least one of each fault, and one in twenty has one."""
    kinds = [GOOD] * candidates
    guilty = random.Random(seed).sample(range(candidates), max(len(FAULTS), candidates // GUILTY_ONE_IN))
    for number, place in enumerate(guilty):
        kinds[place] = FAULTS[number % len(FAULTS)]
    return {f"{number:04d}": kind for number, kind in enumerate(kinds)}


def build_all(kinds: Mapping[str, str], target: str) -> dict[str, bytes]:
    """Archives by candidate, built by several children on all cores."""
    waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for item in kinds.items():
        waiting.put(item)

    def build(_number: int) -> dict[str, bytes]:
        child, codes = Child("benchmarks.gpu.faulty"), {}
        try:
            while (item := _next(waiting)) is not None:
                name, kind = item
                answer = child.call("build", _BUILD_TIMEOUT_S, kind=kind, number=int(name), target=target)
                codes[name] = answer["object"]
            return codes
        finally:
            child.stop()

    builders = min(_BUILDERS_AT_MOST, len(os.sched_getaffinity(0)), len(kinds))
    with ThreadPoolExecutor(builders) as pool:
        return {name: code for codes in pool.map(build, range(builders)) for name, code in codes.items()}


def _race_all(share: Share, measurers: int, codes: Mapping[str, bytes]) -> dict[str, list[Outcome]]:
    """Outcomes of the trials by candidate, raced by several measurers side by side."""
    waiting: queue.SimpleQueue[dict[str, bytes]] = queue.SimpleQueue()
    names = list(codes)
    for first in range(0, len(names), _BATCH):
        waiting.put({name: codes[name] for name in names[first : first + _BATCH]})

    def measure(_number: int) -> list[tuple[str, Outcome]]:
        found: list[tuple[str, Outcome]] = []
        try:
            with _open_session(share) as session:
                while (batch := _next(waiting)) is not None:
                    found += session.trials(ArtifactBatch(ARGS_INFO, 0, batch)).items()
                    print(f"{len(found)} candidates timed by this measurer", flush=True)
        except FractuneError as error:  # its current work stays without an outcome, and is reported
            print(f"a measurer gave up: {error}", file=sys.stderr, flush=True)
        return found

    outcomes: dict[str, list[Outcome]] = {}
    with ThreadPoolExecutor(measurers) as pool:
        for found in pool.map(measure, range(measurers)):
            for name, outcome in found:
                outcomes.setdefault(name, []).append(outcome)
    return outcomes


@contextlib.contextmanager
def _open_session(share: Share) -> Iterator[MeasurementSession]:
    session = MeasurementSession(share, [])
    try:
        session.handshake()
        yield session
    finally:
        session.stop()


def _final(share: Share, kinds: Mapping[str, str], codes: Mapping[str, bytes]) -> dict[str, Outcome]:
    """Outcomes of one validation: the candidates that corrupt memory against some good ones."""
    good, *others = [name for name, kind in kinds.items() if kind == GOOD][: _FINAL_GOOD + 1]
    corrupting = [name for name, kind in kinds.items() if kind == CORRUPT]
    finalists = {_UNTUNED: codes[good], **{name: codes[name] for name in (*others, *corrupting)}}
    with _open_session(share) as session:
        return validate(session, ArtifactBatch(ARGS_INFO, 0, finalists), _UNTUNED)


def judged(kinds: Mapping[str, str], trials: Mapping[str, Sequence[Outcome]], finals: Mapping[str, Outcome]) -> Verdict:
    """Compare every candidate's outcomes with its fault."""
    wrong = []
    named = 0
    for name, kind in kinds.items():
        outcomes = trials.get(name, ())
        if [outcome for outcome in outcomes if outcome.status not in _EXPECTED[kind]] or len(outcomes) != 1:
            wrong.append(f"{name} ({kind}): {_shown(outcomes)}")
        elif kind in {ADDRESS, HANG}:
            named += bool(outcomes[0].cause)
    for name, outcome in finals.items():
        kind = kinds.get(name, GOOD)
        if outcome.status is not (Status.WRONG_OUTPUT if kind == CORRUPT else Status.OK):
            wrong.append(f"{name} ({kind}) in the validation: {_shown([outcome])}")
        elif kind == CORRUPT:
            named += 1
    blamed = [name for name, kind in kinds.items() if kind == GOOD and _has_failed(trials.get(name, ()))]
    return Verdict(
        candidates=len(kinds),
        accounted=sum(len(trials.get(name, ())) == 1 for name in kinds),
        guilty_named=named,
        guilty=sum(kind != GOOD for kind in kinds.values()),
        innocent_blamed=len(blamed),
        wrong=tuple(wrong),
    )


def _has_failed(outcomes: Sequence[Outcome]) -> bool:
    return any(outcome.status is not Status.OK for outcome in outcomes)


def _shown(outcomes: Sequence[Outcome]) -> str:
    return ", ".join(f"{outcome.status} {outcome.cause}".strip() for outcome in outcomes) or "no outcome"


def _told(kind: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    ends = [{"status": each.status, "cause": each.cause, "run_secs": list(each.run_secs)} for each in outcomes]
    return {"does": kind, "outcomes": ends}


def _next(waiting: queue.SimpleQueue[Any]) -> Any:
    """The first waiting piece, None when nothing waits."""
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


if __name__ == "__main__":
    main()
