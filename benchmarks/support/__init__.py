"""Helpers of the benchmarks: machine facts, models, the peer, and timing of whole commands."""
