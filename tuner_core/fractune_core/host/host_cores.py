"""Cores of a host: where a measurement on the CPU has all of them."""

from __future__ import annotations

QUIET_BELOW_CORES = 4
"""On a host with fewer cores, a measurement has the whole host to itself: a build on the other core would take memory
bandwidth and clock speed from it."""
