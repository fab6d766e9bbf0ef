"""Buckets and padding as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fractune_core.files.buckets import Padding


def shapes_lines(buckets: Sequence[Mapping[str, Sequence[int]]]) -> list[str]:
    """A line for each bucket, with the shapes of its inputs."""
    return [f"{'buckets:' if not at else '':<10} {shape_text(each)}" for at, each in enumerate(buckets)]


def shape_text(inputs: Mapping[str, Sequence[int]]) -> str:
    """`ids 1x16, mask 1x16`"""
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in inputs.items())


def padding_line(padding: Padding) -> str:
    if not padding.proved:
        return f"padding:   none, only these shapes run: {padding.reason}"
    return f"padding:   proved: {padding.reason} (largest difference {padding.max_rel_difference:.1e})"
