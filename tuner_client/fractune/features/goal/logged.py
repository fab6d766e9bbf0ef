"""The times of a goal's peer as a log keeps them."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Mapping

from fractune.features.goal.goal_result import Goal, SideBySide
from fractune_core.analysis.runtime_times import RuntimeTime
from fractune_core.analysis.slowdown_ci import Estimate


def step_times(goal: Goal, model_sha256: str, inputs: Mapping[str, list[int]]) -> list[RuntimeTime]:
    """Those beside the bundle of the last step, one for each share, each under a name of its own."""
    return [
        RuntimeTime(
            time_id=uuid.uuid4().hex,
            model=model_sha256,
            inputs=dict(inputs),
            share=each.share,
            runtime=goal.peer,
            version=goal.version,
            loop_s=each.peer_s,
            paced_s=each.paced.peer_s,
            bundle_loop_s=each.our_s,
            bundle_paced_s=each.paced.our_s,
            loop_ratio=_ratio(each),
            paced_ratio=_ratio(each.paced),
            host=socket.gethostname(),
            measured_at=time.time(),
        )
        for each in goal.steps[-1].timings
    ]


def _ratio(timed: SideBySide) -> Estimate:
    return Estimate(timed.ratio, *timed.interval)
