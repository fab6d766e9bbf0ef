"""The table tuned-at x run-at as a heat map: its text is that of `fractune matrix`."""

from __future__ import annotations

from typing import Any

from fractune.dashboard.views.page import Block, Cell
from fractune.features.matrix.cross_table import CrossTable, model_table
from fractune.features.matrix.table import cell_text, cross_text, table_json
from fractune.server.job_status import JobStatus

LEVELS = (0.02, 0.1, 0.3, 1.0)
"""losses at which the next colour begins"""


def heat_block(job: JobStatus) -> Block:
    table, text = model_table(job), cross_text(model_table(job))
    rows = tuple(
        (
            Cell(variant),
            *(Cell(cell_text(table, variant, share), level=_level(table, variant, share)) for share in table.shares),
        )
        for variant in table.cells
    )
    columns = tuple((column.heading, column.numbers) for column in text.columns)
    return Block("Tuned at x run at", columns, rows, text.notes)


def heat_data(job: JobStatus) -> dict[str, Any]:
    """As `fractune matrix --json` prints it."""
    return table_json(model_table(job))


def _level(table: CrossTable, variant: str, share: str) -> int:
    """0 for the fastest and for ties."""
    lost = table.slowdown(variant, share)
    if lost is None:
        return -1
    return 0 if lost.is_tie else sum(lost.median > limit for limit in LEVELS)
