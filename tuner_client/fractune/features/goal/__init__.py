"""Tuning until another runtime is beaten."""
