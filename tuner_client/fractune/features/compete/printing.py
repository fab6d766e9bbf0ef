"""The contests of a bundle, printed."""

from __future__ import annotations

import json
from typing import Any

from fractune.features.compete.results import CompeteResult, Contest


def print_contests(found: CompeteResult, *, as_json: bool) -> None:
    """Print the table and its notes, or an object for each shape and share."""
    if as_json:
        for each in found.contests:
            print(json.dumps(_json(each)), flush=True)
        return
    found.table.print()
    for line in found.table.notes:
        print(line)


def _json(each: Contest) -> dict[str, Any]:
    serves = {goal: each.compared.winner(goal) for goal in ("latency", "throughput")}
    shape = each.shape or None
    return {"event": "compared", "shape": shape, "share": each.share, **each.compared.to_json(), "serves": serves}
