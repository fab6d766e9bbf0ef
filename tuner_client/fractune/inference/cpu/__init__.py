"""A bundle on the CPU."""
