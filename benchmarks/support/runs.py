"""One tuning run of either tuner, in a form that both can be compared in."""

import math
from dataclasses import dataclass
from typing import Any

from benchmarks.support.processes import Ended
from benchmarks.support.trajectory import Trial, final_latency, moment_of


@dataclass(frozen=True)
class Run:
    """Moments in seconds since 1970."""

    process: Ended
    tuning_began: float
    """the model is read and its operators are known"""
    weights: dict[str, int]
    """of the operators tuned, by workload hash"""
    trials: list[Trial]
    """those that the log held before carry the moment at which the process started"""
    failures: dict[str, int]
    """failed trials by cause"""

    @property
    def new(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.at_s > self.process.started]

    @property
    def span_s(self) -> float:
        """From the beginning of tuning to the last measured trial."""
        return max((trial.at_s for trial in self.new), default=math.nan) - self.tuning_began

    @property
    def trials_per_s(self) -> float:
        return len(self.new) / self.span_s

    @property
    def latency_s(self) -> float:
        """The final latency of the run, by its own trials."""
        return final_latency(self.trials, self.weights)

    def moment_of(self, latency_s: float) -> float:
        """When the run first held this latency, by its own trials; infinite when it never did."""
        return moment_of(self.trials, self.weights, latency_s)

    def new_until(self, moment: float) -> int:
        """Trials that the run measured up to a moment."""
        return sum(trial.at_s <= moment for trial in self.new)

    def to_json(self) -> dict[str, Any]:
        return {
            "wall_s": self.process.wall_s,
            "cpu_s": self.process.cpu_s,
            "peak_bytes": self.process.peak_bytes,
            "before_tuning_s": self.tuning_began - self.process.started,
            "tuning_span_s": self.span_s,
            "trials": len(self.new),
            "failures": self.failures,
            "trials_per_s": self.trials_per_s,
            "latency_s": finite(self.latency_s),
            # seconds since the process began, workload hash, median in seconds (null = failed)
            "history": [[t.at_s - self.process.started, t.operator, finite(t.secs)] for t in self.trials],
        }


def finite(value: float) -> float | None:
    """For JSON, which has no infinity."""
    return value if math.isfinite(value) else None
