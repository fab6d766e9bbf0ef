"""Two models on one processor: the cost of sharing for each, and whether they should run together or apart.

The slow-down r of a model is s * i. The factor s is that of the smaller share: alone at the share against alone on the
whole. The factor i is interference: beside the co-runner against alone at the share. STP is the sum of 1 / r, ANTT the
mean of r (Eyerman and Eeckhout, System-level performance metrics for multiprogram workloads, 2008). The two verdicts
compare when each of two jobs ends. Together, the job that remains has the whole from then on; apart, one runs after the
other.
"""

import bisect
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fractune_core.analysis.slowdown_ci import Estimate, estimate

FEWEST_ROUNDS = 7


class Verdict(StrEnum):
    """Whether two models should share a processor; people see these values."""

    TOGETHER = "together"
    APART = "apart"
    TIE = "tie"


@dataclass(frozen=True)
class RoundTimes:
    """Seconds of one inference of one model in one round: the means over its blocks."""

    whole_s: float | None
    """alone on the whole; None where the whole cannot exist beside the share"""
    share_s: float
    """alone at the share"""
    control_s: float
    """alone at the share again, in place of the co-runner's block: the A/A control"""
    together_s: float

    @property
    def i(self) -> float:
        """Interference."""
        return self.together_s / self.share_s

    @property
    def s(self) -> float | None:
        """Slow-down by the share alone; None = not known."""
        return None if self.whole_s is None else self.share_s / self.whole_s

    @property
    def r(self) -> float | None:
        """Slow-down in all: s * i; None = not known."""
        return None if self.whole_s is None else self.together_s / self.whole_s


@dataclass(frozen=True)
class SideFigures:
    """One of the two models, over all rounds. The medians of s, i and r need not multiply."""

    whole_s: Estimate | None
    share_s: Estimate
    together_s: Estimate
    s: Estimate | None
    i: Estimate
    r: Estimate | None
    control: Estimate
    """i without a co-runner: the A/A control, 1 on a quiet machine"""
    per_s: Estimate
    """inferences a second together, one after the other"""


@dataclass(frozen=True)
class CoLocationFigures:
    """Costs of sharing for both models, and their consequences; None where they need a slow-down that is not known."""

    sides: tuple[SideFigures, ...]
    """of both models; of one model, if its co-runner is not a model"""
    stp: Estimate | None
    """above 1: together they do more work than one after the other"""
    antt: Estimate | None
    makespan: Estimate | None
    """for equal numbers of inferences: time until both are done together, over one after the other"""
    mean_completion: Estimate | None
    """the mean completion time of both together, over running the shorter one first"""

    @property
    def makespan_verdict(self) -> Verdict | None:
        """Together where STP > 1, that is r_AB * r_BA < r_AB + r_BA, for jobs of any length."""
        gain = self.stp
        return None if gain is None else verdict(Estimate(1 / gain.median, 1 / gain.high, 1 / gain.low))

    @property
    def mean_completion_verdict(self) -> Verdict | None:
        """If the shorter job A ends first: together if r_AB * (2 - 1 / r_BA) < 2."""
        return None if self.mean_completion is None else verdict(self.mean_completion)


def verdict(together_over_apart: Estimate) -> Verdict:
    """Together where the whole interval is below 1, apart where it is above 1; else a tie."""
    if together_over_apart.high < 1.0:
        return Verdict.TOGETHER
    return Verdict.APART if together_over_apart.low > 1.0 else Verdict.TIE


def co_location_figures(rounds: Sequence[Sequence[RoundTimes]]) -> CoLocationFigures:
    """The figures of `rounds`, each the times of both models, or of one beside a co-runner that is not a model.

    Every figure is computed within each round, where blocks were timed next to each other, and then estimated over the
    rounds. So the intervals are exact for any distribution of the noise.
    """
    sides = tuple(_side(side) for side in zip(*rounds, strict=True))
    pairs = [(one, *other) for one, *other in rounds]
    known = [(a.whole_s, b.whole_s, a.r, b.r) for a, *others in pairs for b in others]
    whole = [
        (t_a, t_b, r_ab, r_ba)
        for t_a, t_b, r_ab, r_ba in known
        if t_a is not None and t_b is not None and r_ab is not None and r_ba is not None
    ]

    def over_rounds(of: Callable[[float, float, float, float], float]) -> Estimate | None:
        return estimate([of(*each) for each in whole]) if whole else None

    return CoLocationFigures(
        sides,
        stp=over_rounds(lambda _a, _b, r_ab, r_ba: stp(r_ab, r_ba)),
        antt=over_rounds(lambda _a, _b, r_ab, r_ba: statistics.mean((r_ab, r_ba))),
        makespan=over_rounds(lambda t_a, t_b, r_ab, r_ba: makespan_s(t_a, t_b, r_ab, r_ba) / (t_a + t_b)),
        mean_completion=over_rounds(
            lambda t_a, t_b, r_ab, r_ba: sum(ends_together_s(t_a, t_b, r_ab, r_ba)) / sum(ends_apart_s(t_a, t_b))
        ),
    )


def stp(r_ab: float, r_ba: float) -> float:
    """System throughput: work of both together, as a fraction of one whole machine's work."""
    return 1.0 / r_ab + 1.0 / r_ba


def ends_together_s(t_a: float, t_b: float, r_ab: float, r_ba: float) -> tuple[float, float]:
    """Ends of A and B, which begin together and take `t_a` and `t_b` alone. Each is slowed down until the first ends;
    then the other has the whole.
    """
    if r_ab * t_a <= r_ba * t_b:
        first = r_ab * t_a
        return first, first + t_b - first / r_ba
    first = r_ba * t_b
    return first + t_a - first / r_ab, first


def makespan_s(t_a: float, t_b: float, r_ab: float, r_ba: float) -> float:
    """Until both have ended: r_AB * t_A + t_B - r_AB * t_A / r_BA where A ends first."""
    return max(ends_together_s(t_a, t_b, r_ab, r_ba))


def ends_apart_s(t_a: float, t_b: float) -> tuple[float, float]:
    """Ends of the shorter and of the longer job, run one after the other."""
    return min(t_a, t_b), t_a + t_b


def mean_inside_s(marks: Sequence[float], co_runner: tuple[float, float]) -> float:
    """Mean seconds of the iterations that lie wholly inside the co-runner's loop; NaN when none does.

    `marks` are the beginning of the first iteration and the ends of all, on the same clock.
    """
    first, last = bisect.bisect_left(marks, co_runner[0]), bisect.bisect_right(marks, co_runner[1]) - 1
    return (marks[last] - marks[first]) / (last - first) if last > first else float("nan")


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The smallest of `values` that at least `percent` percent do not exceed; None when the tail beyond it would hold
    less than one value. The 99th percentile of a hundred requests is the second largest.
    """
    rank = -(-len(values) * percent // 100)
    return sorted(values)[rank - 1] if values and len(values) * (100 - percent) >= 100 else None


def _side(rounds: Sequence[RoundTimes]) -> SideFigures:
    return SideFigures(
        whole_s=_estimate_known([times.whole_s for times in rounds]),
        share_s=estimate([times.share_s for times in rounds]),
        together_s=estimate([times.together_s for times in rounds]),
        s=_estimate_known([times.s for times in rounds]),
        i=estimate([times.i for times in rounds]),
        r=_estimate_known([times.r for times in rounds]),
        control=estimate([times.control_s / times.share_s for times in rounds]),
        per_s=estimate([1.0 / times.together_s for times in rounds]),
    )


def _estimate_known(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return estimate(known) if len(known) == len(values) else None
