"""Targets as far as they can be known without TVM: their identity and their cores, in TVM's JSON."""

from __future__ import annotations

import json

NOT_IDENTITY = ("num-cores", "tag")


def target_key(target: str) -> str:
    """Identity of a target (TVM's JSON text) for lookups, as canonical JSON.

    `num-cores` is left out: it steers the search, while a trace already holds every decision that came of it,
    so a schedule found for one core is the same code on a target of two. Raises ValueError for text that is
    no JSON.
    """
    config = {name: value for name, value in json.loads(target).items() if name not in NOT_IDENTITY}
    if "mattr" in config:
        config["mattr"] = sorted(config["mattr"])
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


def with_cores(target: str, cores: int) -> str:
    """The target (TVM's JSON text) with `cores` as its num-cores, unchanged for 0. Raises ValueError as above."""
    return json.dumps({**json.loads(target), "num-cores": cores}) if cores else target
