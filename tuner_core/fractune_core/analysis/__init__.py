"""Analysis of the log's timings: which schedule fits a share, how certain that is, and what it costs."""
