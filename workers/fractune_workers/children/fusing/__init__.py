"""Variants of one model as one module: an outer axis, of slots, over all that they compute."""
