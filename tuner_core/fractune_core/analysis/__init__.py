"""What the timings in the log say: which schedule fits a share, how sure that is, and what it costs."""
