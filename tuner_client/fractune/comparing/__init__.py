"""Models compared: interleaved timings, and differences of outputs."""
