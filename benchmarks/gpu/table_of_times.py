"""The table that times of a pack give: schedules tuned at one share, run at each of the others."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fractune_core.records import UNTUNED, Kind, Status, TuningRecord


def records_in(times: Path) -> list[TuningRecord]:
    """A line that a kill has torn is left out."""
    lines = times.read_text(encoding="utf-8").split("\n")[:-1]
    return [TuningRecord.from_json(known["record"]) for known in map(json.loads, lines) if "record" in known]


def fastest(records: Iterable[TuningRecord], share: str) -> TuningRecord | None:
    """The candidate of an operator that is fastest at the share: by its validation where it has one."""
    right = [each for each in records if each.share == share and each.status is Status.OK and each.trace != UNTUNED]
    return min(right, key=lambda each: (each.kind is not Kind.VALIDATION, each.median_s), default=None)


def by_operator(records: Iterable[TuningRecord]) -> Mapping[str, list[TuningRecord]]:
    """By name and hash."""
    found: dict[str, list[TuningRecord]] = defaultdict(list)
    for each in records:
        found[f"{each.operator} {each.workload_hash[:8]}"].append(each)
    return found


def rows(records: Sequence[TuningRecord], shares: Sequence[str]) -> list[str]:
    """Of Markdown: by operator and the share that a schedule was tuned at, its validated time at each share."""
    lines = [f"| operator | tuned at | {' | '.join(shares)} |", f"|{'---|' * (2 + len(shares))}"]
    for name, own in by_operator(records).items():
        chosen = {share: each.candidate_id for share in shares if (each := fastest(own, share)) is not None}
        untuned = [("untuned", each.candidate_id) for each in own if each.trace == UNTUNED][:1]
        for tuned_at, candidate in [*untuned, *chosen.items()]:
            cells = [_cell(own, candidate, share) for share in shares]
            lines.append(f"| {name} | {tuned_at} | {' | '.join(cells)} |")
    return lines


def _cell(records: Sequence[TuningRecord], candidate: str, share: str) -> str:
    found = [
        each
        for each in records
        if each.candidate_id == candidate and each.share == share and each.kind is Kind.VALIDATION
    ]
    if not found:
        return ""
    each = found[-1]
    return f"{each.median_s * 1e6:.1f} us" if each.status is Status.OK else each.status.value
