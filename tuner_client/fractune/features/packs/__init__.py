"""Packs: `fractune pack` and `fractune measure`."""
