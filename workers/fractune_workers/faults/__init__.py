"""Faults of a device: which measurements they void, and which artifact is to blame."""
