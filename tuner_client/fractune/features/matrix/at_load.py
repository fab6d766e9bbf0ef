"""Latencies of a model at 30 % load, as people and programs read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fractune.server.job_status import ShareResult
from fractune.text.text import time_text
from fractune_core.analysis.at_load import AtLoad
from fractune_core.analysis.cpu_limits.limits import threads_text
from fractune_core.names import explained_variant
from fractune_core.served import LOAD_TEXT

HEADING = f"p50 / p99 at {LOAD_TEXT}"


def latency_cell(found: AtLoad | None) -> str:
    """`3.14 ms / 9.10 ms`; `3.14 ms / -` with too few requests for a p99, `-` if not measured."""
    return "-" if found is None else f"{time_text(found.p50_s)} / {time_text(found.p99_s)}"


def at_load_json(result: ShareResult) -> dict[str, Any]:
    """All that were timed, and the best by goal: times in seconds, None = not known."""
    return {
        "at_load": [{**each.served.to_json(), **each.to_json()} for each in result.at_load],
        "served": {goal: best.served.to_json() for goal, best in result.best.items()},
        "others_cores": result.others_cores,
    }


def at_load_sentences(results: Iterable[ShareResult]) -> Iterator[str]:
    """A sentence for each share: the best variant for requests first."""
    for each in results:
        best = each.at_load_best
        if best is not None:
            ordered = (best, *(other for other in each.at_load if other != best))
            yield f"at {each.share}, {HEADING}: " + ", ".join(f"{_name(one)} {latency_cell(one)}" for one in ordered)


def load_notes(results: Iterable[ShareResult]) -> Iterator[str]:
    """A note for each share where another variant than that for the share is the best, or where nothing was chosen."""
    for each in results:
        if each.at_load and not each.best:
            yield (
                f"note: at {each.share} other programs had {each.others_cores:.2f} cores while the model was timed, so "
                "these times choose no variant and threads; repeat the command on a quieter machine"
            )
        elif each.at_load and each.at_load_best != each.at_load[0]:
            best, own = each.best["latency"], each.at_load[0]
            yield (
                f"note: at {each.share} 'fractune.load' takes {_name(best)}: {HEADING} {latency_cell(best)}, with "
                f"{_name(own)} {latency_cell(own)}"
            )


def _name(found: AtLoad) -> str:
    return f"{explained_variant(found.variant)} with {threads_text(found.threads)}"
