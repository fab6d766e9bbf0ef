"""The step `fault`: a candidate that reads an illegal address, beside three clients of the GPU that measure good ones.

CUDA ends every client of an MPS server with the one that has failed. Then each candidate must still have one outcome,
and the guilty one alone may be blamed. No kernel hangs: that takes a minute.
"""

import contextlib
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.crowd import opened
from benchmarks.gpu.faulty import ADDRESS, ARGS_INFO, GOOD
from benchmarks.gpu.step import given_here
from fractune_core.errors import FractuneError
from fractune_core.records import Status
from fractune_workers.child import Child
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession, Outcome

FOLDER = "faults"
"""of the carried files: an archive a candidate, `NUMBER-KIND.a`"""
MEASURERS = 4
_CANDIDATES, _GUILTY = 24, 5
"""how many, and which one: the others have come to measure by then"""
_BUILD_TIMEOUT_S = 120.0
_EXPECTED = {GOOD: {Status.OK}, ADDRESS: {Status.CRASHED, Status.RUN_FAILED}}
"""how a trial of each kind may end"""


@dataclass(frozen=True)
class Verdict:
    """The outcomes of the candidates."""

    candidates: int
    accounted: int
    """with just one outcome"""
    guilty_named: int
    innocent_blamed: int
    wrong: tuple[str, ...]
    """each candidate that ended in another way than it had to"""


def build_all(folder: Path, target: str) -> None:
    """Build the candidates for `target` (`cuda:sm_90`) into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    child = Child("benchmarks.gpu.faulty")
    try:
        for number in range(_CANDIDATES):
            kind = ADDRESS if number == _GUILTY else GOOD
            answer = child.call("build", _BUILD_TIMEOUT_S, kind=kind, number=number, target=target)
            (folder / f"{number:02d}-{kind.replace(' ', '_')}.a").write_bytes(answer["object"])
    finally:
        child.stop()


def main() -> None:
    given = given_here("a fault beside others")
    codes = {path.stem: path.read_bytes() for path in sorted((given.carried / FOLDER).glob("*.a"))}
    kinds = {name: name.partition("-")[2].replace("_", " ") for name in codes}
    with given.pack("table") as (_, folder):
        outcomes = _race_all(folder, codes, given.end_s)
    verdict = judged(kinds, outcomes)
    told = {name: _told(kinds[name], found) for name, found in outcomes.items()}
    given.write("fault", {"verdict": vars(verdict), "measurers": MEASURERS, "trials": told})
    print(f"{verdict.accounted} of {verdict.candidates} accounted for, {verdict.innocent_blamed} innocent blamed")
    if verdict.wrong:
        raise SystemExit("; ".join(verdict.wrong))


def _race_all(folder: Path, codes: Mapping[str, bytes], end_s: float) -> dict[str, list[Outcome]]:
    """Outcomes of the trials by candidate, raced by several measurers side by side."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in codes:
        waiting.put(name)

    def measure(session: MeasurementSession) -> list[tuple[str, Outcome]]:
        found: list[tuple[str, Outcome]] = []
        session.end_s = end_s
        try:
            while True:
                name = waiting.get_nowait()
                found += session.trials(ArtifactBatch(ARGS_INFO, 0, {name: codes[name]})).items()
        except queue.Empty:
            pass
        except FractuneError as error:  # its current work stays without an outcome, and is reported
            print(f"a measurer gave up: {error}", flush=True)
        return found

    outcomes: dict[str, list[Outcome]] = {}
    with contextlib.ExitStack() as held:
        sessions = [held.enter_context(opened(folder)) for _ in range(MEASURERS)]
        with ThreadPoolExecutor(MEASURERS) as pool:
            list(pool.map(MeasurementSession.handshake, sessions))
            for found in pool.map(measure, sessions):
                for name, outcome in found:
                    outcomes.setdefault(name, []).append(outcome)
    return outcomes


def judged(kinds: Mapping[str, str], trials: Mapping[str, Sequence[Outcome]]) -> Verdict:
    """Compare every candidate's outcomes with its fault."""
    wrong = []
    named = 0
    for name, kind in kinds.items():
        outcomes = trials.get(name, ())
        if [outcome for outcome in outcomes if outcome.status not in _EXPECTED[kind]] or len(outcomes) != 1:
            wrong.append(f"{name} ({kind}): {_shown(outcomes)}")
        elif kind != GOOD:
            named += bool(outcomes[0].cause)
    blamed = [name for name, kind in kinds.items() if kind == GOOD and _has_failed(trials.get(name, ()))]
    return Verdict(
        candidates=len(kinds),
        accounted=sum(len(trials.get(name, ())) == 1 for name in kinds),
        guilty_named=named,
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


if __name__ == "__main__":
    main()
