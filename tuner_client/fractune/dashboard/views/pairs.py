"""Models that were measured together: how much slower each is beside each other one."""

from collections.abc import Sequence

from fractune.dashboard.views.page import LEVELS, Block, Cell, Page, block_of
from fractune.features.pair.result import pairs_table
from fractune.text.text import slowdown_text
from fractune_core.analysis.model_times import MeasuredPair
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import one_line
from fractune_core.served import is_disturbed

_HOW = (
    "time together over time alone on the whole, with the 95 % interval",
    "where the whole is not known, it is over time alone at the share",
    "of several measurements of two models the newest undisturbed one is shown, else the newest; all are below",
)
_EMPTY = "no pair is in the log; 'fractune pair A.fractune B.fractune --record' measures one"


def pairs(found: Sequence[MeasuredPair]) -> Page:
    """`found` are the newest first."""
    return Page(
        "Pairs",
        {"pairs": [each.to_json() for each in found]},
        blocks=(_matrix(found), block_of(pairs_table(found), "All measurements", empty=_EMPTY)),
    )


def _matrix(found: Sequence[MeasuredPair]) -> Block:
    """A row for each model, a column for each co-runner."""
    cells: dict[tuple[str, str], Estimate] = {}
    for each in sorted(found, key=lambda pair: is_disturbed(pair.others_cores)):
        for one, other in (each.models, each.models[::-1]):
            ratio = one.slowdown or one.interference
            if ratio is not None:
                cells.setdefault((one.model_name, other.model_name), ratio)
    rows, beside = (sorted(set(names)) for names in zip(*cells, strict=True)) if cells else ([], [])
    columns = (("slow-down of", False), *((f"beside {one_line(name)}", True) for name in beside))
    shown = tuple((Cell(one_line(name)), *(_cell(cells.get((name, other))) for other in beside)) for name in rows)
    return Block("Slow-downs", columns, shown, _HOW if shown else (), _EMPTY)


def _cell(ratio: Estimate | None) -> Cell:
    if ratio is None:
        return Cell("-")
    return Cell(slowdown_text(ratio), level=sum(ratio.median - 1 > limit for limit in LEVELS))
