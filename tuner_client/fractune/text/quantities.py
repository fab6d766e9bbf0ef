"""Sizes, times and rates as users write them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fractune_core.errors import BadRequest

_FORM = re.compile(r"([1-9][0-9]{0,17})([A-Za-z]*)")
_BYTES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MOST_BYTES = (1 << 63) - 1
_SECONDS = {"h": 3600, "d": 24 * 3600}
_FRACTION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-z/]+)")
_SHORT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_PER_S = {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}
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


def parse_time_s(option: str, text: str) -> float:
    """Read `50ms`, `1.5s` or `800us`. Raises BadRequest."""
    return _parse_positive(option, text, _SHORT_S, "a time such as 50ms, 1.5s or 800us")


def parse_rate_per_s(option: str, text: str) -> float:
    """Read `18/s`, `0.5/s` or `600/min`. Raises BadRequest."""
    return _parse_positive(option, text, _PER_S, "requests by time, such as 18/s or 600/min")


def parse_millicores(option: str, text: str) -> int:
    """Read `50m`. Raises BadRequest."""
    return _parse(option, text, {"m": 1}, "thousandths of a core, such as 50m")


def _parse_positive(option: str, text: str, units: Mapping[str, float], examples: str) -> float:
    form = _FRACTION.fullmatch(text.strip())
    if form is None or form[2] not in units or not float(form[1]):
        raise BadRequest(f"{option} '{text}': write {examples}")
    return float(form[1]) * units[form[2]]


def _parse(option: str, text: str, units: Mapping[str, int], examples: str) -> int:
    form = _FORM.fullmatch(text)
    if form is None or form[2] not in units:
        raise BadRequest(f"{option} '{text}': write {examples}")
    return int(form[1]) * units[form[2]]
