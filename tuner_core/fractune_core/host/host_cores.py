"""Cores of a host: where a measurement on the CPU has all of them."""

from __future__ import annotations

QUIET_BELOW_CORES = 4
"""On a host with fewer cores than this, a measurement has the whole host to itself: a build on the one core
beside it takes memory bandwidth and clock from it."""
