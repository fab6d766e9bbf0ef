"""The noise experiment: what a measurement is worth on this machine."""
