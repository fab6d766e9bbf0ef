"""Tuning a model, with or without a goal."""
