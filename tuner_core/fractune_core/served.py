"""The variant that serves a model at a share, by measurements of the whole model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fractune_core.codec.plain_json import JsonObject

ServiceGoal = Literal["latency", "throughput"]
"""of a model in a service: the least latency of requests that arrive at random, at 30 % load, or the most requests in a
loop"""


@dataclass(frozen=True)
class Served(JsonObject):
    """The best variant at a share for one goal, and its times in seconds."""

    variant: str
    threads: int
    loop_s: float
    """of one inference in a loop"""
    p50_s: float
    """of a request at 30 % load, from its arrival to its answer"""
    p99_s: float | None
    """None with fewer than 100 requests"""
