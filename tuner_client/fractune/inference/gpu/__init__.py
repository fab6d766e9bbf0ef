"""A bundle on an NVIDIA GPU."""
