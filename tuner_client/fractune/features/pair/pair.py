"""`fractune.pair`: the cost of co-location for two models, measured on this machine."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune.features.pair import run
from fractune.features.pair.result import PairSide, PairTimes, RateLatency, measured_pair, pair_json, pair_table
from fractune.features.pair.run import Arrangement, CoLocation, CoRunner, Program, arrange, co_located, time_rounds
from fractune.local.stack import own_env
from fractune.sessions.progress import LineProgress, line_reporter
from fractune.text.rendering import Table
from fractune_core.analysis import match, model_times, slowdown_ci
from fractune_core.analysis.co_location import FEWEST_ROUNDS, CoLocationFigures, co_location_figures
from fractune_core.errors import BadBundle, BadRequest, one_line
from fractune_core.files.bundles import Bundle
from fractune_core.served import LOAD, is_disturbed

BUBBLES_MIB = (1, 8, 32, 128)
DEFAULT_ROUNDS = 9
_CONTROL_ALLOWED, _CONTROL_WIDEST = 0.03, 0.1
"""largest distances from 1 on a quiet machine: of the A/A control, and of either end of its interval"""
_REQUESTS, _MOST_S = 300, 60.0
"""requests of the model with the lower rate, and seconds at most"""
_FEW_REQUESTS, _SHORT_S = 120, 15.0
"""the same where no rate was stated"""
_BUSIEST = 0.95
"""largest rate of a model as a fraction of its closed-loop throughput: above it the queue only grows"""


@dataclass(frozen=True)
class PairResult(PairTimes):
    """Two models, or a model and a process that streams through memory, in one arrangement."""

    def __repr__(self) -> str:
        names = " beside ".join(one_line(side.name) for side in self.sides)
        return f"PairResult({names}: {self.arrangement}, {len(self.rounds)} rounds)"

    @property
    def table(self) -> Table:
        """A row for each model, with sentences as notes."""
        return pair_table(self)

    @property
    def sentences(self) -> Sequence[str]:
        """STP, ANTT, throughput, the verdicts and the notes."""
        return self.table.notes

    def measured(self) -> model_times.MeasuredPair:
        """What `Client.add_pair` puts into the log. Each call makes another pair."""
        return measured_pair(self)

    def to_json(self) -> dict[str, Any]:
        """As `fractune pair --json` prints it: times in seconds, intervals as lists, None if not known."""
        return pair_json(self)


def pair(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    *,
    shares: str | Sequence[str] | None = None,
    overlap: str | None = None,
    interleaved: bool = False,
    co_runner: str | None = None,
    rounds: int = DEFAULT_ROUNDS,
    rate: float | Sequence[float] | None = None,
    seed: int = 0,
    progress: LineProgress = True,
) -> PairResult:
    """Measure the cost of co-location for the models of two bundles on this machine's processor.

    Each has its own share (`shares`, two of them), or both have the same one (`overlap`), or they use it alternately
    (`interleaved`, by default the whole machine). Without these options each has half of the cores of this process.
    `co_runner` replaces `b`: `bubble:32MiB` streams through that much memory. Each of the `rounds` (7 at least) is
    timed alone, together, alone. Then latencies are measured at `rate`, in requests a second for both or for each. By
    default it is 30 % of what each answers in a loop together. `seed` draws phases and arrivals. `progress` is that of
    `noise`.

    Raises BadBundle, BadRequest, ShareUnavailable, and FractuneError when TVM is not installed.
    """
    report_line = line_reporter(progress)
    programs = _programs(a, b, co_runner)
    rates = _rates(rate, sum(program.is_model for program in programs))
    if rounds < FEWEST_ROUNDS:
        raise BadRequest(f"--rounds is {rounds}; it must be at least {FEWEST_ROUNDS} for an interval")
    kind = _device_kind(programs)
    if co_runner is not None and (interleaved or kind != "cpu"):
        reason = "cannot alternate" if interleaved else "is in the memory of the CPU, and the bundle is for a GPU"
        raise BadRequest(f"--co-runner {co_runner} {reason}; name another bundle")
    text = shares if isinstance(shares, str) or shares is None else ",".join(map(str, shares))
    arrangement = arrange(kind, shares=text, overlap=overlap, interleaved=interleaved, cores=run.usable_cores())
    with co_located(programs, arrangement, seed, own_env()) as both:
        times, others_cores = both.beside_others(lambda: time_rounds(both, rounds, report_line))
        figures = co_location_figures(times)
        latencies = _latencies(both, figures, rates)
        sides = _sides(both)
    notes = (*_notes(arrangement, sides, figures, others_cores), *_overload_notes(sides, figures, latencies))
    whole = None if arrangement.whole is None else str(arrangement.whole.share)
    return PairResult(
        str(arrangement), arrangement.kind, whole, sides, tuple(times), figures, latencies, notes, others_cores
    )


def _programs(
    a: str | os.PathLike[str], b: str | os.PathLike[str] | None, co_runner: str | None
) -> tuple[Program, Program]:
    if (b is None) == (co_runner is None):
        raise BadRequest("name two bundles, or one bundle and --co-runner bubble:32MiB")
    first = Program("bundle", os.fspath(Path(a).absolute()))
    if b is not None:
        return first, Program("bundle", os.fspath(Path(b).absolute()))
    sizes = {f"bubble:{size}MiB": str(size) for size in BUBBLES_MIB}
    if co_runner not in sizes:
        raise BadRequest(f"--co-runner '{co_runner}' is unknown; write {', '.join(sizes)}")
    return first, Program("bubble", sizes[co_runner])


def _rates(rate: float | Sequence[float] | None, models: int) -> list[float]:
    """Requests a second of each model; empty for none."""
    if rate is None:
        return []
    given = list(rate) if isinstance(rate, Sequence) else [rate] * models
    for each in given:
        if not 0 < each < math.inf:
            raise BadRequest(f"--rate is {each}; it must be above 0: requests a second, such as 20")
    if len(given) != models:
        raise BadRequest(f"--rate has {len(given)} numbers for {models} model(s); give one for both, or one for each")
    return given


def _device_kind(programs: Sequence[Program]) -> str:
    """The device kind of all bundles: `cpu` or `cuda`. Raises BadBundle if one cannot be read, or they differ."""
    bundles = [Bundle(Path(program.content)) for program in programs if program.is_model]
    kinds = {bundle.manifest["device"]["kind"]: bundle for bundle in bundles}
    for bundle in bundles:
        bundle.close()
    if len(kinds) > 1:
        (one, first), (other, second) = kinds.items()
        raise BadBundle(
            f"{first.name} is for a device of kind '{one}', {second.name} for '{other}': pair needs the same kind"
        )
    return str(next(iter(kinds)))


def _latencies(both: CoLocation, figures: CoLocationFigures, rates: Sequence[float]) -> tuple[RateLatency, ...]:
    if not rates:
        rates = [LOAD * side.per_s.median for side in figures.sides]
        served = both.serve(rates, _FEW_REQUESTS, _SHORT_S)
        return tuple(RateLatency(rate, tuple(each)) for rate, each in zip(rates, served, strict=True))
    if any(rate >= _BUSIEST * side.per_s.median for rate, side in zip(rates, figures.sides, strict=True)):
        return tuple(RateLatency(rate, None) for rate in rates)
    served = both.serve(rates, _REQUESTS, _MOST_S)
    return tuple(RateLatency(rate, tuple(each)) for rate, each in zip(rates, served, strict=True))


def _sides(both: CoLocation) -> tuple[PairSide, PairSide]:
    wholes = {each.program: each.description for each in both.wholes}
    one, other = (_side(each, wholes.get(each.program, {})) for each in both.co_runners)
    return one, other


def _side(co_runner: CoRunner, whole: dict[str, str]) -> PairSide:
    name, share = co_runner.program.name, str(co_runner.placement.share)
    if not co_runner.program.is_model:
        return PairSide(name, share)
    here = co_runner.description
    is_measured = all(each["how"] != match.How.NONE.value for each in (here, whole) if each)
    return PairSide(name, share, here["variant"], here["reason"], whole.get("variant", ""), is_measured=is_measured)


def _notes(
    arrangement: Arrangement, sides: Sequence[PairSide], figures: CoLocationFigures, others_cores: float
) -> list[str]:
    notes = []
    if is_disturbed(others_cores):
        notes.append(
            f"<= marks times that are too long: other programs had {others_cores:.2f} cores meanwhile, and no plan "
            "takes the ratios; measure the pair again on a quieter machine"
        )
    if not arrangement.is_verified:
        notes.append("not verified on a GPU: pair has never run on one")
    if arrangement.whole is None:
        notes.append("s, r, STP and the verdicts are unknown: no process can use the whole GPU while its parts exist")
    notes += [
        f"{side.name}: the bundle has no time at one of these shares, so an untuned variant ran; tune the model there"
        for side in sides
        if not side.is_measured
    ]
    notes += [
        f"{side.name}: the A/A control is {each.control.median:.2f} ({each.control.low:.2f} .. "
        f"{each.control.high:.2f}) instead of 1: the machine was not quiet, and i has at least this error"
        for side, each in zip(sides, figures.sides, strict=False)
        if not _is_quiet(each.control)
    ]
    return notes


def _is_quiet(control: slowdown_ci.Estimate) -> bool:
    widest = max(abs(control.low - 1.0), abs(control.high - 1.0))
    return abs(control.median - 1.0) <= _CONTROL_ALLOWED and widest <= _CONTROL_WIDEST


def _overload_notes(
    sides: Sequence[PairSide], figures: CoLocationFigures, latencies: Sequence[RateLatency]
) -> list[str]:
    return [
        f"{side.name}: {latency.rate_per_s:g} requests a second are too many for {each.per_s.median:.3g} inferences a "
        "second together; its queue would grow without limit, so no latencies were measured"
        for side, each, latency in zip(sides, figures.sides, latencies, strict=False)
        if latency.latency_s is None and latency.rate_per_s >= _BUSIEST * each.per_s.median
    ]
