"""The report of the noise experiment: the score of every setting, and the advice, as plain JSON values."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fractune_core import records
from fractune_core.analysis.noise import (
    DEFAULT_MARGIN,
    NoiseAdvice,
    Pair,
    Score,
    Timing,
    explain,
    is_negligible,
    mean_of_causes,
    mean_times,
    measurers_at_once,
    racing_margin,
    score,
    spread,
    taus,
    tie_width,
)
from fractune_core.errors import FractuneError
from fractune_workers.measuring.session import Outcome


@dataclass(frozen=True)
class Setting:
    """A way to time candidates."""

    policy: records.TimingPolicy | None
    """None = raced, as a search does it"""
    measurers: int = 1
    """at the same time, each with its part of the candidates"""
    builds: bool = False
    """builds run beside"""

    @property
    def policy_name(self) -> str:
        return self.policy.name if self.policy else "race"

    def __str__(self) -> str:
        beside = "alone" if self.measurers == 1 else f"{self.measurers} measurers"
        return f"{self.policy_name}, {beside}{', builds beside' if self.builds else ''}"


@dataclass(frozen=True)
class Pass:
    """One timing of all candidates."""

    outcomes: dict[str, Outcome]
    wall_s: float
    anchor_ratios: Mapping[str, float] = field(default_factory=dict)
    """of the anchor beside each candidate; one that is absent was not timed"""

    @property
    def disturbances(self) -> list[records.Disturbance]:
        return [each.disturbance for each in self.outcomes.values() if each.disturbance]

    @property
    def times(self) -> dict[str, float]:
        return {name: each.median_s for name, each in self.outcomes.items() if each.status is records.Status.OK}

    @property
    def failures(self) -> int:
        return len(self.outcomes) - len(self.times)


REFERENCE = Setting(records.VALIDATION_POLICY.undivided())
FIRST = Setting(records.FIRST_POLICY)
RACE = Setting(None)
Passes = Mapping[Setting, Sequence[Pass]]


def report(passes: Passes, own_cores: Mapping[int, bool], notes: Sequence[str] = ()) -> dict[str, Any]:
    """Scores, advice and notes of a finished experiment: times in seconds, spreads and regrets as fractions.

    `own_cores`: by number of measurers, whether each has cores of its own. `notes` come before those of the report.
    Raises FractuneError when the reference could time nothing.
    """
    first, second = (each.times for each in passes[REFERENCE])
    reference = mean_times(first, second)
    noise = spread(first, second)
    if noise is None:
        causes = [each.cause for each in passes[REFERENCE][0].outcomes.values() if each.cause]
        raise FractuneError(f"no candidate could be timed twice: {causes[0] if causes else 'each failed once'}")
    tie = tie_width(noise)
    # The reference's own passes are judged by each other: against their mean they would vouch for themselves.
    against = dict.fromkeys(passes, (reference, reference)) | {REFERENCE: (second, first)}
    scores = {
        setting: score([each.times for each in timed], against[setting], tie) for setting, timed in passes.items()
    }
    return {
        "candidates": len(passes[REFERENCE][0].outcomes),
        "tie_width": tie,
        "settings": [_scored(setting, passes[setting], scores[setting], own_cores) for setting in passes],
        "advice": asdict(_advice(reference, passes, scores)),
        "race_margin": DEFAULT_MARGIN,
        "race_keeps_winner": is_negligible(scores[RACE].regret),
        "explanation": _explanation(passes),
        "notes": [*notes, *_notes(noise.p90, scores[REFERENCE], own_cores)],
    }


def _advice(reference: Mapping[str, float], passes: Passes, scores: Mapping[Setting, Score]) -> NoiseAdvice:
    """A reference that does not agree with itself cannot vouch for others: then the careful advice."""
    quiet = {
        each.measurers: score
        for each, score in scores.items()
        if each.policy == records.TRIAL_POLICY and not each.builds
    }
    judges = scores[REFERENCE].is_good
    measurers = measurers_at_once(quiet) if judges else 1
    margin = racing_margin(reference, [each.times for each in passes[FIRST]])
    return NoiseAdvice(
        measurers=measurers,
        margin=margin if judges else max(margin, DEFAULT_MARGIN),
        builds_beside=judges and scores[Setting(records.TRIAL_POLICY, measurers, builds=True)].is_good,
        tau=quiet[measurers].tau,
        regret=quiet[measurers].regret,
        measured_at=time.time(),
    )


def _scored(setting: Setting, timed: Sequence[Pass], judged: Score, own_cores: Mapping[int, bool]) -> dict[str, Any]:
    candidates = timed[0].outcomes
    return {
        "name": str(setting),
        "policy": setting.policy_name,
        "measurers": setting.measurers,
        "builds": setting.builds,
        "own_cores": own_cores[setting.measurers],
        "spread_median": judged.spread.median if judged.spread else None,
        "spread_p90": judged.spread.p90 if judged.spread else None,
        "tau": judged.tau,
        "tau_all": judged.tau_all,
        "regret": judged.regret,
        "failures": sum(each.failures for each in timed),
        **_disturbed(timed),
        "secs_per_candidate": sum(each.wall_s for each in timed) / len(timed) / len(candidates),
        "median_s": {name: [_finite(each.outcomes[name].median_s) for each in timed] for name in candidates},
    }


def _disturbed(timed: Sequence[Pass]) -> dict[str, Any]:
    """The counts beside a setting, and the rank correlation of each cause with the times."""
    seen = [disturbance for each in timed for disturbance in each.disturbances]
    whole = records.total(seen)
    return {
        "lost": whole.lost if whole else None,
        "causes": mean_of_causes(seen),
        "cause_taus": taus(_pairs(timed)) if seen else {},
    }


def _explanation(passes: Passes) -> dict[str, Any] | None:
    """The explanation of the spread of all timings with nothing else running; None where nothing was counted."""
    alone = [timed for setting, timed in passes.items() if setting.measurers == 1 and not setting.builds]
    found = explain([_pairs(timed) for timed in alone])
    return asdict(found) if found else None


def _pairs(timed: Sequence[Pass]) -> dict[str, Pair]:
    """The two timings of each candidate that was watched both times, and timed under the same policy."""
    first, second = timed
    pairs = {}
    for name in first.times.keys() & second.times.keys():
        # A race times a contender for longer, and who is one may differ from pass to pass.
        if first.outcomes[name].policy == second.outcomes[name].policy:
            one, other = (_timing(each, name) for each in timed)
            if one and other:
                pairs[name] = (one, other)
    return pairs


def _timing(timed: Pass, name: str) -> Timing | None:
    outcome = timed.outcomes[name]
    if outcome.disturbance is None:
        return None
    return Timing(outcome.median_s, outcome.disturbance, timed.anchor_ratios.get(name, 0.0))


def _notes(noise: float, reference: Score, own_cores: Mapping[int, bool]) -> list[str]:
    notes = [
        f"{count} measurers share cores: this machine has too few for each to have its own"
        for count, own in own_cores.items()
        if not own
    ]
    if reference.tau is None:
        notes.append("the candidates are ties: nothing to rank, so the advice is careful; try more of them, or --model")
    elif not reference.is_good:
        notes.append(
            f"the reference does not agree with itself (A/A p90 {noise * 100:.1f} %), so the advice is careful: "
            "something else uses this machine, or its clock wanders; repeat this when it is quiet"
        )
    return notes


def _finite(secs: float) -> float | None:
    return secs if math.isfinite(secs) else None
