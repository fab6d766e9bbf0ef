"""Inputs that nobody meant, by the million: `scripts/fuzz`."""
