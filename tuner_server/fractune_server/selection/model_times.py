"""How fast whole models are, as jobs timed them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from fractune_core.planning.devices import DeviceType
from fractune_core.shares import GrantedShare
from fractune_server.store.stored_job import StoredJob


def served_secs(timing: Mapping[str, Any], share: str) -> float:
    """Seconds of one call at `share` with the variant for it, else with the fastest. `timing` as in `StoredJob`."""
    medians: dict[str, float] = {variant: statistics.median(secs) for variant, secs in timing["run_secs"].items()}
    return medians.get(share, min(medians.values()))


def timed_secs(job: StoredJob, wanted: DeviceType) -> dict[int, float]:
    """The same of each share that the job timed and that is one of `wanted`, by its units there."""
    found: dict[int, float] = {}
    for share, timing in job.timings.items():
        granted = GrantedShare.from_json(timing["granted"])
        units = wanted.units_of_granted(granted.units) if granted.mechanism in (wanted.layouts.value, "full") else None
        if units is not None:
            found[units] = served_secs(timing, share)
    return found
