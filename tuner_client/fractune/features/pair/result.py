"""Measurements of two co-runners on one processor, as values, tables and JSON."""

import math
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fractune.text.rendering import Column, Table
from fractune.text.text import estimate_text, marked_time, moment_text, slowdown_text, time_text
from fractune_core.analysis.co_location import CoLocationFigures, RoundTimes, Verdict, percentile
from fractune_core.analysis.model_times import INTERLEAVED, MeasuredPair, PairedModel
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import one_line
from fractune_core.served import is_disturbed


@dataclass(frozen=True)
class PairSide:
    """One co-runner: a model, or a process that streams through memory."""

    name: str
    """of the bundle, or `bubble:32MiB`"""
    share: str
    variant: str = ""
    """the variant of the bundle that ran at the share; empty for `bubble`"""
    reason: str = ""
    """why this variant"""
    whole_variant: str = ""
    """the variant that ran on the whole; empty if the whole cannot exist"""
    is_measured: bool = True
    """whether the bundle has times for both choices; otherwise the variants may be far from the best"""


@dataclass(frozen=True)
class RateLatency:
    """Latencies of a model's requests, which arrived at random at a rate, as did those of its co-runner."""

    rate_per_s: float
    latency_s: tuple[float, ...] | None
    """of each request from arrival to answer; None if the model cannot serve the rate together"""

    @property
    def p50_s(self) -> float | None:
        """None = not known."""
        return percentile(self.latency_s or (), 50)

    @property
    def p99_s(self) -> float | None:
        """None = not known: with fewer than 100 requests."""
        return percentile(self.latency_s or (), 99)


@dataclass(frozen=True)
class PairTimes:
    """Measurements of two co-runners in one arrangement."""

    arrangement: str
    """`cpu:1 + cpu:1, each on its own, of cpu:2`"""
    how: str
    """kind of the arrangement: `own units`, `same units` or `in turn`"""
    whole: str | None
    """the share of both together; None if it cannot exist beside its parts"""
    sides: tuple[PairSide, PairSide]
    rounds: tuple[tuple[RoundTimes, ...], ...]
    """times of the models in each round, in the order of `sides`"""
    figures: CoLocationFigures
    """s, i, r of each model, STP, ANTT and the verdicts, with 95 % intervals"""
    latencies: tuple[RateLatency, ...] = ()
    """of each model, at the stated rate or at 30 % load"""
    notes: tuple[str, ...] = ()
    others_cores: float = 0.0
    """cores of both that other programs had in the rounds, on average"""


def measured_pair(found: PairTimes) -> MeasuredPair:
    """To be kept in a log, under a name of its own."""
    figures = found.figures
    models = [
        PairedModel(side.name, side.share, side.variant, *_figures(found, number))
        for number, side in enumerate(found.sides)
    ]
    return MeasuredPair(
        pair_id=uuid.uuid4().hex,
        models=tuple(models),
        arrangement=found.arrangement,
        how=found.how,
        host=socket.gethostname(),
        rounds=len(found.rounds),
        measured_at=time.time(),
        stp=figures.stp,
        verdict=figures.makespan_verdict or "",
        others_cores=found.others_cores,
    )


def pairs_table(pairs: Sequence[MeasuredPair]) -> Table:
    """A row for each model beside another one."""
    columns = (
        *(Column("model", wraps_at=20), Column("share"), Column("beside", wraps_at=20), Column("its share")),
        *(Column("slow-down", numbers=True), Column("by the co-runner", numbers=True), Column("verdict")),
        *(Column("host", dispensable=1), Column("measured", dispensable=2)),
    )
    cells = tuple(
        (
            *(one_line(one.model_name), one.share, one_line(other.model_name), other.share),
            *(slowdown_text(one.slowdown), slowdown_text(one.interference)),
            "disturbed" if is_disturbed(each.others_cores) else each.verdict or "-",
            *(one_line(each.host), moment_text(each.measured_at)),
        )
        for each in pairs
        for one, other in (each.models, each.models[::-1])
        if one.interference is not None
    )
    return Table(title="Models measured together", columns=columns, cells=cells)


def _figures(found: PairTimes, number: int) -> tuple[Estimate | None, Estimate | None]:
    """Slow-down and interference of a model; for another process None."""
    sides = found.figures.sides
    return (sides[number].r, sides[number].i) if number < len(sides) else (None, None)


def pair_table(found: PairTimes) -> Table:
    """A row for each model; `rows` as the `models` of the JSON."""
    names = " beside ".join(side.name for side in found.sides)
    whole = f"alone, {found.whole}" if found.whole else "alone, whole"
    return Table(
        title=f"{names}: {found.arrangement}",
        columns=(
            *(Column("model", wraps_at=12), Column("share"), Column(whole, numbers=True, dispensable=2)),
            *(Column("alone there", numbers=True, dispensable=1), Column("together", numbers=True)),
            *(Column(name, numbers=True, wraps_at=8) for name in ("s: share", "i: co-runner", "r = s * i")),
            Column("p50 / p99 of requests", numbers=True, dispensable=4),
            Column("A/A control", numbers=True, dispensable=3, wraps_at=8),
        ),
        cells=tuple(_cells(found, index) for index in range(len(found.figures.sides))),
        rows=tuple(_model_json(found, index) for index in range(len(found.figures.sides))),
        notes=tuple(_sentences(found)),
    )


def pair_json(found: PairTimes) -> dict[str, Any]:
    """Times in seconds, slow-downs as factors, an estimate as median and 95 % interval; None = not known."""
    figures = found.figures
    return {
        "event": "pair",
        "arrangement": found.how,
        "whole": found.whole,
        "neighbour": None if len(figures.sides) > 1 else found.sides[1].name,
        "models": [_model_json(found, index) for index in range(len(figures.sides))],
        "stp": _estimate_json(figures.stp),
        "antt": _estimate_json(figures.antt),
        "makespan": _estimate_json(figures.makespan),
        "makespan_verdict": figures.makespan_verdict,
        "mean_completion": _estimate_json(figures.mean_completion),
        "mean_completion_verdict": figures.mean_completion_verdict,
        "notes": list(found.notes),
        "others_cores": found.others_cores,
        "rounds": [[asdict(times) for times in each] for each in found.rounds],
    }


def _cells(found: PairTimes, index: int) -> tuple[str, ...]:
    side, each = found.sides[index], found.figures.sides[index]
    latency = found.latencies[index] if found.latencies else None
    return (
        side.name,
        side.share,
        *(
            marked_time(None if secs is None else secs.median, at_most=is_disturbed(found.others_cores))
            for secs in (each.whole_s, each.share_s, each.together_s)
        ),
        *map(slowdown_text, (each.s, each.i, each.r)),
        "-" if latency is None else f"{time_text(latency.p50_s)} / {time_text(latency.p99_s)}",
        estimate_text(each.control),
    )


def _model_json(found: PairTimes, index: int) -> dict[str, Any]:
    side, each = found.sides[index], found.figures.sides[index]
    latency = found.latencies[index] if found.latencies else None
    return {
        "name": side.name,
        "share": side.share,
        "variant": side.variant,
        "reason": side.reason,
        "whole_variant": side.whole_variant,
        **{name: _estimate_json(getattr(each, name)) for name in ("whole_s", "share_s", "together_s")},
        **{name: _estimate_json(getattr(each, name)) for name in ("s", "i", "r", "control", "per_s")},
        "rate_per_s": None if latency is None else latency.rate_per_s,
        "p50_s": None if latency is None else latency.p50_s,
        "p99_s": None if latency is None else latency.p99_s,
        "latency_s": None if latency is None or latency.latency_s is None else list(latency.latency_s),
    }


def _estimate_json(found: Estimate | None) -> dict[str, float | None] | None:
    """JSON has no NaN."""
    if found is None:
        return None
    low, high = (None if math.isnan(edge) else edge for edge in (found.low, found.high))
    return {"median": found.median, "low": low, "high": high}


def _sentences(found: PairTimes) -> Iterator[str]:
    figures, (one, other) = found.figures, found.sides
    if len(figures.sides) < 2:
        yield _sensitivity(found)
    else:
        each = ", ".join(
            f"{side.name} {side_figures.per_s.median:.3g}/s"
            for side, side_figures in zip(found.sides, figures.sides, strict=True)
        )
        yield f"throughput together, in a closed loop with one request of each model: {each}"
    if figures.stp is not None and figures.antt is not None:
        yield f"STP {estimate_text(figures.stp)}, ANTT {estimate_text(figures.antt)}"
    yield from _verdicts(found)
    if found.latencies:
        yield "latency of random requests, one of each model at a time: " + "; ".join(
            _latency_text(side, latency) for side, latency in zip((one, other), found.latencies, strict=False)
        )
    if found.how == INTERLEAVED:
        yield "i includes the wait while the co-runner computes"
    yield f"intervals are 95 % each, over {len(found.rounds)} rounds"
    yield from (f"note: {note}" for note in found.notes)


def _sensitivity(found: PairTimes) -> str:
    name, bubble, i = found.sides[0].name, found.sides[1].name, found.figures.sides[0].i
    if i.low <= 1.0 <= i.high:
        return f"{bubble} does not slow {name} beyond the noise ({_change_text(i)})"
    word = "slower" if i.median > 1.0 else "faster"
    return f"{name} is {word} beside {bubble}: {_change_text(i)}. The contended resource was not measured"


def _verdicts(found: PairTimes) -> Iterator[str]:
    figures = found.figures
    if figures.makespan is None or figures.mean_completion is None:
        return
    makespan, mean = figures.makespan_verdict, figures.mean_completion_verdict
    spans = f"{_change_text(figures.makespan)} for equally many inferences of both"
    yield f"makespan: {_verdict_text(makespan)} ({spans}, compared with one model after the other)"
    means = f"{_change_text(figures.mean_completion)}, compared with the shorter model first"
    yield f"mean completion: {_verdict_text(mean)} ({means})"
    if {makespan, mean} == {Verdict.TOGETHER, Verdict.APART}:
        yield "the verdicts disagree: the first counts if you wait for both models, the second if you wait for each"


def _verdict_text(verdict: Verdict | None) -> str:
    return "tie within the noise" if verdict is Verdict.TIE else f"{verdict}"


def _latency_text(side: PairSide, latency: RateLatency) -> str:
    if latency.latency_s is None:
        return f"{side.name} at {latency.rate_per_s:.3g}/s not measured"
    few = "" if latency.p99_s else f" (of {len(latency.latency_s)} requests; p99 needs 100)"
    return (
        f"{side.name} at {latency.rate_per_s:.3g}/s p50 {time_text(latency.p50_s)}, p99 {time_text(latency.p99_s)}{few}"
    )


def _change_text(factor: Estimate) -> str:
    """`-12 % (-15 .. -9)`: a factor as a change in percent."""
    median, low, high = (100 * (edge - 1.0) for edge in (factor.median, factor.low, factor.high))
    return f"{median:+.1f} % ({low:+.1f} .. {high:+.1f})"
