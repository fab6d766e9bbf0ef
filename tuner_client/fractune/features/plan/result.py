"""A plan as callers get it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune.features.plan.deployment import deployment
from fractune.features.plan.table import models_table, parts_table, plan_json
from fractune.text.rendering import Table
from fractune_core.planning.plans import Plan


@dataclass(frozen=True)
class PlanResult:
    """A plan, for a person to confirm: nothing was changed anywhere."""

    plan: Plan

    @property
    def table(self) -> Table:
        """A row for each part of each device."""
        return parts_table(self.plan)

    @property
    def models(self) -> Table:
        """A row for each model: what it asks for and what it gets."""
        return models_table(self.plan)

    def to_json(self) -> dict[str, Any]:
        """As `fractune plan --json` prints it."""
        return plan_json(self.plan)

    def deployment(self, form: str = "commands") -> str:
        """What to run or apply, as text: `commands`, `compose` or `kubernetes`. Raises BadRequest."""
        return deployment(self.plan, form)

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw the devices and their parts to `path` (.svg or .png).

        Raises BadRequest for another suffix, FractuneError without matplotlib, StateUnusable.
        """
        from fractune.features.plan.picture import draw_plan
        from fractune.text.figure import check_picture

        check_picture(Path(path))
        draw_plan(self.plan, Path(path))
