"""Sizes and times as users write them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fractune_core.errors import BadRequest

_FORM = re.compile(r"([1-9][0-9]{0,17})([A-Za-z]*)")
_BYTES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MOST_BYTES = (1 << 63) - 1
_SECONDS = {"h": 3600, "d": 24 * 3600}
_LONGEST_S = 36_500 * _SECONDS["d"]


def parse_bytes(option: str, text: str) -> int:
    """Read `2GiB`, `500MiB` or plain bytes. Raises BadRequest."""
    size = _parse(option, text, _BYTES, "a size such as 2GiB, 500MiB or 1000000")
    if size > _MOST_BYTES:
        raise BadRequest(f"{option} '{text}': at most {_MOST_BYTES} bytes are allowed")
    return size


def parse_lifetime_s(option: str, text: str) -> float:
    """Read `12h` or `30d`. Raises BadRequest."""
    lifetime_s = _parse(option, text, _SECONDS, "hours or days, such as 12h or 30d")
    if lifetime_s > _LONGEST_S:
        raise BadRequest(f"{option} '{text}': write a hundred years (36500d) at most")
    return float(lifetime_s)


def _parse(option: str, text: str, units: Mapping[str, int], examples: str) -> int:
    form = _FORM.fullmatch(text)
    if form is None or form[2] not in units:
        raise BadRequest(f"{option} '{text}': write {examples}")
    return int(form[1]) * units[form[2]]
