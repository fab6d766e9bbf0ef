"""Two bundles of one model compared, for the gate of a release."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune.inference.choosing import VariantChoice
from fractune.inference.comparing.interleaved import time_interleaved
from fractune.inference.loading import load
from fractune.inference.model import Model
from fractune_core.agreement import differences
from fractune_core.analysis.slowdown_ci import Slowdown, slowdown
from fractune_core.errors import BadRequest

FEWEST_REPEATS = 6


@dataclass(frozen=True)
class Comparison:
    """A new bundle against the last one, on the same inputs."""

    slowdown: Slowdown
    """of the new bundle: 0.05 = 5 % longer, below 0 = faster; with its 95 % interval"""
    new_secs: tuple[float, ...]
    """seconds of one inference by the new bundle in a loop, all repeats, interleaved with `last_secs`"""
    last_secs: tuple[float, ...]
    paced_slowdown: Slowdown
    """as `slowdown`, of paced requests: each comes 20 ms after the previous answer"""
    new_paced_secs: tuple[float, ...]
    last_paced_secs: tuple[float, ...]
    max_abs_difference: float
    """largest difference of the outputs; infinite if only one has a number"""
    max_rel_difference: float
    """the same over the largest value of that output: another order of additions makes about 1e-6"""
    new: VariantChoice
    """the variant of the new bundle that ran, and the reason"""
    last: VariantChoice

    def __repr__(self) -> str:
        loop, paced = (
            f"{each.median * 100:+.1f} % ± {each.margin * 100:.1f} %" for each in (self.slowdown, self.paced_slowdown)
        )
        return f"Comparison(slowdown {loop}, paced {paced}, max_rel_difference {self.max_rel_difference:.1e})"

    def is_slower(self, tolerance: float = 0.0) -> bool:
        """Return True if the new bundle is slower in a loop beyond the noise, and by more than `tolerance` (0.03 = 3
        %).
        """
        return not self.slowdown.is_tie and self.slowdown.median > tolerance


def compare(
    new: str | os.PathLike[str] | Model,
    last: str | os.PathLike[str] | Model,
    *,
    share: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    repeats: int = 21,
) -> Comparison:
    """Run two bundles of one model interleaved in this process: their times in a loop and paced, and the agreement of
    outputs.

    Both are loaded for `share` (by default the share of this process) and confined to it. Loaded models stay unchanged.
    `inputs` as for `Model.run`, by default random ones. Each is timed `repeats` times, 6 at least, in pairs, so that a
    slow-down of the machine for both cancels out.

    Raises BadBundle, BadRequest, ShareUnavailable, or FractuneError when TVM's runtime is not installed.
    """
    if repeats < FEWEST_REPEATS:
        raise BadRequest(f"repeats is {repeats}; it must be at least {FEWEST_REPEATS} for an interval")
    mine, theirs = (each if isinstance(each, Model) else load(Path(each), share=share) for each in (new, last))
    feed = mine.random_inputs() if inputs is None else inputs
    outputs, reference = mine.run(feed), theirs.run(feed)
    if [each.shape for each in outputs] != [each.shape for each in reference]:
        raise BadRequest(f"{mine.bundle.name} and {theirs.bundle.name} have different outputs: are they of one model?")
    absolute, relative = differences(outputs, reference)
    times = time_interleaved({"new": _call(mine, feed), "last": _call(theirs, feed)}, repeats, apart=True)
    new_times, last_times = times["new"], times["last"]
    return Comparison(
        slowdown(new_times.loop_secs, last_times.loop_secs, interleaved=True),
        tuple(new_times.loop_secs),
        tuple(last_times.loop_secs),
        slowdown(new_times.paced_secs, last_times.paced_secs, interleaved=True),
        tuple(new_times.paced_secs),
        tuple(last_times.paced_secs),
        absolute,
        relative,
        mine.choice,
        theirs.choice,
    )


def _call(model: Model, inputs: Mapping[str, Any]) -> Callable[[], Any]:
    """One inference, with its inputs already on the model's device."""
    placed = model.placed(inputs)
    return lambda: model.run_tensors(placed)
