"""Numbers as people read them."""

import importlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from fractune_core.analysis.roofline import LAUNCH_BOUND
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import BadRequest, FractuneError, one_line
from fractune_core.served import is_disturbed

Rows = Sequence[Mapping[str, Any]]


def pandas_frame(rows: Rows) -> Any:
    """A `pandas.DataFrame` with a column for each name. Raises FractuneError without pandas."""
    return _library("pandas").DataFrame(list(rows))


def polars_frame(rows: Rows) -> Any:
    """A `polars.DataFrame` with a column for each name. Raises FractuneError without Polars."""
    # Types of columns are those of all rows: the first rows of a column may lack its value.
    return _library("polars").DataFrame(list(rows), infer_schema_length=None, strict=False)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FractuneError(f"a data frame of {name} needs it; install the package '{name}'") from error


_NOTICED_S = 0.05
_MARK, _AT_MOST, _UNKNOWN = " *", "<= ", "-"


def time_text(secs: float | None) -> str:
    """`8.10 ns`, `12.3 us`, `4.56 ms`, `1.20 s`; `-` if not known."""
    if secs is None or not math.isfinite(secs) or secs <= 0:
        return _UNKNOWN
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if secs < limit:
            return f"{_three_digits(secs * factor)} {unit}"
    return f"{_three_digits(secs)} s"


def common_unit(longest_s: float) -> tuple[str, float]:
    """The unit for times up to `longest_s` that stand together, and the factor from seconds to it."""
    return ("us", 1e6) if longest_s < 1e-3 else ("ms", 1e3) if longest_s < 1 else ("s", 1.0)


def _three_digits(value: float) -> str:
    """`1.20`, `10.0`, `270`: three digits."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def gflops_text(gflops: float | None) -> str:
    """`80.1`, `1.20`; `-` if not known."""
    return "-" if gflops is None else _three_digits(gflops)


def span_text(secs: float) -> str:
    """A duration: `42 s`, `3 min 05 s`."""
    whole = max(round(secs), 0)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def left_text(secs: float, *, is_least: bool) -> str:
    """`about 2 min 05 s left`, `at least 42 s left`"""
    return f"{'at least' if is_least else 'about'} {span_text(secs)} left"


def moment_text(secs: float) -> str:
    """A time of day in seconds since 1970: `2026-01-31 13:05 UTC`."""
    return datetime.fromtimestamp(secs, UTC).strftime("%Y-%m-%d %H:%M UTC")


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def ago_text(secs: float, now: float) -> str:
    """How long ago a time was, or how far it lies ahead, in its largest unit: `3 min ago`, `in 2 h`."""
    span = abs(now - secs)
    size, unit = next((each for each in _UNITS if span >= each[0]), (1, "s"))
    text = f"{int(span / size)} {unit}"
    return f"{text} ago" if secs <= now else f"in {text}"


def spent_text(spent_s: Mapping[str, float]) -> str:
    """Seconds by name, without negligible ones: `starting 3.2 s, ingesting 9.1 s`."""
    return ", ".join(f"{name} {secs:.1f} s" for name, secs in spent_s.items() if secs >= _NOTICED_S)


def ratio_text(slower: float | None, faster: float | None) -> str:
    """`1.54x`; `-` if a time is not known."""
    if not slower or not faster or not math.isfinite(slower / faster):
        return "-"
    return factor_text(slower / faster)


def factor_text(factor: float) -> str:
    """`1.54x`, `99.05x`, `238x`"""
    return f"{factor:.2f}x" if factor < 99.995 else f"{factor:.0f}x"


def percent_text(fraction: float | None) -> str:
    """`1.2 %`; `-` if not known."""
    return "-" if fraction is None else f"{fraction * 100:.1f} %"


def roof_text(part: float | None, *, memory_bound: bool | None) -> str:
    """`87 %` of what the arithmetic allows, `memory 87 %` where the memory allows less; `-` if not known."""
    return "-" if part is None else f"{'memory ' if memory_bound else ''}{part * 100:.0f} %"


def score_text(score: float | None) -> str:
    """`0.98`; `-` if not known."""
    return "-" if score is None else f"{score:.2f}"


def counts_text(counts: dict[str, int]) -> str:
    """`bad_output 1, run_timeout 2`; `none`. The names come from workers and models."""
    return ", ".join(f"{one_line(name)} {count}" for name, count in sorted(counts.items())) or "none"


def estimate_text(each: Estimate | None) -> str:
    """`1.21 (1.18 .. 1.25)`; `-` for one that is not known."""
    return "-" if each is None else f"{each.median:.2f} ({each.low:.2f} .. {each.high:.2f})"


def slowdown_text(each: Estimate | None) -> str:
    """As `estimate_text`; a factor that is below 1 beyond the noise is a gain: `speed-up 1.82x (1.75 .. 1.90)`."""
    if each is None or each.median >= 1 or each.high >= 1:
        return estimate_text(each)
    return f"speed-up {factor_text(1 / each.median)} ({1 / each.high:.2f} .. {1 / each.low:.2f})"


LAUNCH_NOTE = (
    f"* at most {LAUNCH_BOUND:g} times the launch floor of its share, the time of an empty kernel: the host's "
    "launches are timed, so shares tie; a larger batch shows the kernels."
)


def marked_time(secs: float | None, *, launch_bound: bool | None = None, at_most: bool = False) -> str:
    """`3.30 us *` near the launch floor, `<= 3.30 us` if other programs disturbed it, else `3.30 us`."""
    text = time_text(secs)
    return f"{_AT_MOST if at_most and text != _UNKNOWN else ''}{text}{_MARK if launch_bound else ''}"


class UntunedAt(Protocol):
    """An untuned time at a share."""

    @property
    def share(self) -> str: ...
    @property
    def is_untuned_summed(self) -> bool:
        """of its operators' times"""


def untuned_notes(found: Iterable[UntunedAt]) -> tuple[str, ...]:
    """The note on untuned times that are sums, if there are any."""
    at = ", ".join(dict.fromkeys(each.share for each in found if each.is_untuned_summed))
    why = "untuned, the whole model is more than ten times as slow and did not run"
    return (f"note: at {at} the untuned time is the sum of its operators' times: {why}",) if at else ()


class TimedAt(Protocol):
    """Times at a share."""

    @property
    def share(self) -> str: ...
    @property
    def others_cores(self) -> float:
        """that other programs had meanwhile"""


def disturbed_notes(found: Iterable[TimedAt]) -> tuple[str, ...]:
    """The note on the times that other programs disturbed, if there are any."""
    most: dict[str, float] = {}
    for each in found:
        if is_disturbed(each.others_cores):
            most[each.share] = max(each.others_cores, most.get(each.share, 0.0))
    if not most:
        return ()
    busy = ", ".join(f"{cores:.2f} cores at {one_line(share)}" for share, cores in most.items())
    note = (
        f"note: {_AT_MOST.strip()} marks times that are too long: other programs had {busy} while the model "
        "was timed. These times choose nothing, and intervals reach down to what the lost cores alone explain; repeat "
        "the command on a quieter machine"
    )
    return (note,)


def launch_notes(launch_bound: Iterable[bool | None]) -> tuple[str, ...]:
    """The note, if any time has the mark."""
    return (LAUNCH_NOTE,) if any(launch_bound) else ()


_FORM = re.compile(r"([1-9][0-9]{0,17})([A-Za-z]*)")
_POWERS = {"K": 10, "M": 20, "G": 30, "T": 40}
_BYTES = {"": 1, **{f"{unit}{end}": 1 << power for unit, power in _POWERS.items() for end in ("", "iB")}}
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


_SHOWN_ABOVE = 1.0005
"""rounded to a tenth of a percent this is more than 100 %"""
_ABOVE = (
    "More than 100 % of a roof: the kernel does fewer operations than the direct way, which the roof counts "
    "(Winograd), or the roof was measured too low, on a busy machine."
)


def roof_notes(roof_parts: Iterable[float | None], unit: str, *, has_roof: bool) -> tuple[str, ...]:
    """A note that explains parts above 1, or an empty column; empty if there is nothing to explain.

    `unit` is that of the shares (`core` or `sm`). `has_roof`: whether the roof of any of them is known.
    """
    parts = list(roof_parts)
    known = [part for part in parts if part is not None]
    if parts and not known:
        return (f"No part of a roof is known: {_cause(unit, has_roof=has_roof)}.",)
    return (_ABOVE,) if any(part > _SHOWN_ABOVE for part in known) else ()


def _cause(unit: str, *, has_roof: bool) -> str:
    if unit == "sm":
        return "the roof of a GPU is not measured"
    if not has_roof:
        return "the log has no roof of these shares; a worker measures one with its first batch there"
    return "the operators may stay in the cache, which has no measured roof, or their arithmetic is in doubt"
