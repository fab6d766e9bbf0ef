"""Kernels request weights before they read them: passes over scheduled convolutions and matrix products."""
