"""Variants of one model as one module: all values get an outer axis of slots."""
