"""What the benchmarks share: machine facts, models, the peer, and how whole commands are timed."""
