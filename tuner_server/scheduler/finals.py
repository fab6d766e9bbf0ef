"""Who is checked for right output and measured again, alone, before a winner is published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tuner_core.records import Status, TuningRecord

BEST_PER_SHARE = 2


def contestants(
    best: Mapping[str, Sequence[TuningRecord]], finals: Iterable[TuningRecord], untuned: str
) -> dict[str, str]:
    """Trace by candidate: the untuned default first, then the best few of every share.

    `best` holds the fastest trials by share key, fastest first, more than enough of them; `untuned` is the
    candidate id of the untuned default. A candidate that has failed a final at any share is none again.
    """
    refused = {record.candidate_id for record in finals if record.status is not Status.OK}
    chosen = {untuned: ""}
    for records in best.values():
        fit = [record for record in records if record.candidate_id not in refused]
        chosen.update({record.candidate_id: record.trace for record in fit[:BEST_PER_SHARE]})
    return chosen


def settled(chosen: Iterable[str], finals: Iterable[TuningRecord], shares: Iterable[str]) -> bool:
    """True when every contestant has a final at every share (keys), so that nothing is left to measure."""
    held = {(record.candidate_id, record.granted.key) for record in finals}
    wanted = list(chosen)
    return all((candidate, share) in held for share in shares for candidate in wanted)
