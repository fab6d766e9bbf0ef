"""The decisions of a trace as numbers, and the operator's surrogate as MetaSchedule's cost model."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import PyCostModel

from fractune_workers.children.searching.surrogate import Surrogate

_PLACED = ("ComputeAt", "ReverseComputeAt")


def features_of(trace: Any) -> dict[str, float]:
    """Numbers by name: tile sizes as binary logarithms, other decisions unchanged, the count of each kind of step, and
    for a moved block the step that made its loop. A name means the same for all traces of one operator.
    """
    features: dict[str, float] = {}
    numbers: Counter[str] = Counter()
    for step, decision in trace.decisions.items():
        kind = step.kind.name
        name = f"{kind} {numbers[kind]}"
        numbers[kind] += 1
        if kind == "SamplePerfectTile":
            features.update({f"{name}.{level}": math.log2(int(size)) for level, size in enumerate(decision)})
        else:
            features[name] = float(int(decision))
    return features | _shape(trace)


def _shape(trace: Any) -> dict[str, float]:
    """The features that distinguish the sketches of an operator."""
    features: dict[str, float] = {}
    made: dict[Any, float] = {}
    for at, step in enumerate(trace.insts):
        kind = step.kind.name
        if kind == "EnterPostproc":
            break
        features[kind] = features.get(kind, 0.0) + 1.0
        made.update({made_here: at + place / 10 for place, made_here in enumerate(step.outputs)})
        if kind in _PLACED:
            features[f"{kind} {features[kind]:g} at"] = made.get(step.inputs[1], -1.0)
    return features


@derived_object
class SurrogateModel(PyCostModel):
    """A surrogate in the form in which MetaSchedule's evolution asks; it is taught directly."""

    def __init__(self, surrogate: Surrogate, pressure: float) -> None:
        super().__init__()
        self.surrogate = surrogate
        self._pressure = pressure

    def predict(self, context: Any, candidates: list[Any]) -> Any:
        del context
        scores = self.surrogate.scores([features_of(candidate.sch.trace) for candidate in candidates])
        return (scores / scores.max()).astype(np.float64) ** self._pressure
