"""Buckets and padding as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fractune_core.files.buckets import Padding


def shapes_lines(buckets: Sequence[Mapping[str, Sequence[int]]]) -> list[str]:
    """A line for each bucket, with the shapes of its inputs."""
    texts = [", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in each.items()) for each in buckets]
    return [f"{'buckets:' if not at else '':<10} {text}" for at, text in enumerate(texts)]


def padding_line(padding: Padding) -> str:
    if not padding.proved:
        return f"padding:   none, only these shapes run: {padding.reason}"
    return f"padding:   proved: {padding.reason} (largest difference {padding.max_rel_difference:.1e})"
