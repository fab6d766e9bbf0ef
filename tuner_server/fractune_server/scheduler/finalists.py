"""Which candidates are checked for right output and measured again, alone, before a winner is published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fractune_core.records import Status, TuningRecord

BEST_PER_SHARE = 2


def finalists(
    best: Mapping[str, Sequence[TuningRecord]],
    earlier: Sequence[TuningRecord],
    untuned: str,
    count: int = BEST_PER_SHARE,
) -> dict[str, str]:
    """Trace by candidate: the untuned default first, then of every share the winner of `earlier` validations and the
    `count` fastest trials.

    `best` holds the fastest trials by share key, fastest first, more than enough of them; `untuned` is the
    candidate id of the untuned default. A candidate that has failed a validation at any share is none again.
    """
    refused = {record.candidate_id for record in earlier if record.status is not Status.OK}
    chosen = {untuned: ""}
    for share, records in best.items():
        held = [record for record in earlier if record.granted.key == share and record.candidate_id not in refused]
        winner = min(held, key=lambda record: (record.median_s, record.candidate_id), default=None)
        fit = [record for record in records if record.candidate_id not in refused][:count]
        chosen.update({record.candidate_id: record.trace for record in [*([winner] if winner else []), *fit]})
    return chosen


def all_validated(chosen: Iterable[str], validations: Iterable[TuningRecord], shares: Iterable[str]) -> bool:
    """True when every finalist has a validation at every share (keys), so that nothing is left to measure."""
    held = {(record.candidate_id, record.granted.key) for record in validations}
    wanted = list(chosen)
    return all((candidate, share) in held for share in shares for candidate in wanted)
