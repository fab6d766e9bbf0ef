"""`fractune.pair`: what it costs two models to share a processor, measured on this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune.features.pair.arrangement import Arrangement, arrange, usable_cores
from fractune.features.pair.result import PairSide, PairTimes, RateLatency
from fractune.features.pair.run import Player, Program, Stage, staged, time_sharing
from fractune.features.pair.table import pair_json, pair_table
from fractune.local.stack import own_env
from fractune.sessions.progress import LineProgress, line_reporter
from fractune.text.rendering import Table
from fractune_core.analysis.match import How
from fractune_core.analysis.sharing import FEWEST_ROUNDS, SharingFigures, sharing_figures
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import BadBundle, BadRequest, one_line
from fractune_core.files.bundles import Bundle

BUBBLES_MIB = (1, 8, 32, 128)
DEFAULT_ROUNDS = 9
_CONTROL_ALLOWED, _CONTROL_WIDEST = 0.03, 0.1
"""how far the A/A control, and either end of its interval, may be from 1 on a quiet machine"""
_REQUESTS, _MOST_S = 300, 60.0
"""requests at a stated rate: of the rarer model so many, unless that takes longer"""
_BUSIEST = 0.95
"""part of its closed-loop throughput that a model can be asked for: beyond it the queue only grows"""


@dataclass(frozen=True)
class PairResult(PairTimes):
    """Two models, or one and a neighbour that is no model, in one arrangement."""

    def __repr__(self) -> str:
        names = " beside ".join(one_line(side.name) for side in self.sides)
        return f"PairResult({names}: {self.arrangement}, {len(self.rounds)} rounds)"

    @property
    def table(self) -> Table:
        """A row for each model, and what follows from it in sentences."""
        return pair_table(self)

    @property
    def sentences(self) -> Sequence[str]:
        """STP, ANTT, throughput, the verdicts and the notes."""
        return self.table.notes

    def to_json(self) -> dict[str, Any]:
        """As `fractune pair --json` prints it: times in seconds, intervals as lists, None for what is not known."""
        return pair_json(self)


def pair(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    *,
    shares: str | Sequence[str] | None = None,
    overlap: str | None = None,
    in_turn: bool = False,
    neighbour: str | None = None,
    rounds: int = DEFAULT_ROUNDS,
    rate: float | Sequence[float] | None = None,
    seed: int = 0,
    progress: LineProgress = True,
) -> PairResult:
    """Measure what it costs the models of two bundles to share this machine's processor.

    Each has a share of its own (`shares`, two of them), both have the same (`overlap`), or they alternate there
    (`in_turn`, by default on the whole machine). Without any of these each has half of this process's cores or GPU.
    `neighbour` is in place of `b`: `bubble:32MiB` streams through so much memory. `rounds` (7 at least) are timed, each
    alone, together, alone. `rate` is in requests a second, of both or of each: their latency is measured too. `seed`
    draws phases and arrivals. `progress` as of `noise`.

    Raises BadBundle, BadRequest, ShareUnavailable, and FractuneError when TVM is not installed.
    """
    report_line = line_reporter(progress)
    programs = _programs(a, b, neighbour)
    rates = _rates(rate, sum(program.is_model for program in programs))
    if rounds < FEWEST_ROUNDS:
        raise BadRequest(f"rounds is {rounds}; it must be at least {FEWEST_ROUNDS} for an interval")
    kind = _device_kind(programs)
    if neighbour is not None and (in_turn or kind != "cpu"):
        why = "takes no turns" if in_turn else "is in the memory of the CPU, and the bundle is for a GPU"
        raise BadRequest(f"neighbour {neighbour} {why}; name another bundle")
    text = shares if isinstance(shares, str) or shares is None else ",".join(map(str, shares))
    arrangement = arrange(kind, shares=text, overlap=overlap, in_turn=in_turn, cores=usable_cores())
    with staged(programs, arrangement, seed, own_env()) as stage:
        times = time_sharing(stage, rounds, report_line)
        figures = sharing_figures(times)
        latencies = _latencies(stage, figures, rates)
        sides = _sides(stage)
    notes = (*_notes(arrangement, sides, figures), *_overload_notes(sides, figures, latencies))
    whole = None if arrangement.whole is None else str(arrangement.whole.share)
    return PairResult(str(arrangement), arrangement.how, whole, sides, tuple(times), figures, latencies, notes)


def _programs(
    a: str | os.PathLike[str], b: str | os.PathLike[str] | None, neighbour: str | None
) -> tuple[Program, Program]:
    if (b is None) == (neighbour is None):
        raise BadRequest("name two bundles, or one and a neighbour such as bubble:32MiB")
    first = Program("bundle", os.fspath(Path(a).absolute()))
    if b is not None:
        return first, Program("bundle", os.fspath(Path(b).absolute()))
    sizes = {f"bubble:{size}MiB": str(size) for size in BUBBLES_MIB}
    if neighbour not in sizes:
        raise BadRequest(f"neighbour '{neighbour}' is unknown; write {', '.join(sizes)}")
    return first, Program("bubble", sizes[neighbour])


def _rates(rate: float | Sequence[float] | None, models: int) -> list[float]:
    """Requests a second of each model; empty for none."""
    if rate is None:
        return []
    given = list(rate) if isinstance(rate, Sequence) else [rate] * models
    for each in given:
        if not 0 < each < math.inf:
            raise BadRequest(f"rate is {each}; it must be above 0: requests a second, such as 20")
    if len(given) != models:
        raise BadRequest(f"rate has {len(given)} numbers for {models} model(s); give one for both, or one for each")
    return given


def _device_kind(programs: Sequence[Program]) -> str:
    """`cpu` or `cuda`, what all bundles are for. Raises BadBundle when one cannot be read, or they differ."""
    bundles = [Bundle(Path(program.what)) for program in programs if program.is_model]
    kinds = {bundle.manifest["device"]["kind"]: bundle for bundle in bundles}
    for bundle in bundles:
        bundle.close()
    if len(kinds) > 1:
        (one, first), (other, second) = kinds.items()
        raise BadBundle(f"{first.name} is for a device of kind '{one}', {second.name} for '{other}': they share none")
    return str(next(iter(kinds)))


def _latencies(stage: Stage, figures: SharingFigures, rates: Sequence[float]) -> tuple[RateLatency, ...]:
    if not rates:
        return ()
    if any(rate >= _BUSIEST * side.per_s.median for rate, side in zip(rates, figures.sides, strict=True)):
        return tuple(RateLatency(rate, None) for rate in rates)
    served = stage.serve(rates, _REQUESTS, _MOST_S)
    return tuple(RateLatency(rate, tuple(each)) for rate, each in zip(rates, served, strict=True))


def _sides(stage: Stage) -> tuple[PairSide, PairSide]:
    wholes = {player.program: player.description for player in stage.wholes}
    one, other = (_side(player, wholes.get(player.program, {})) for player in stage.players)
    return one, other


def _side(player: Player, whole: dict[str, str]) -> PairSide:
    name, share = player.program.name, str(player.place.share)
    if not player.program.is_model:
        return PairSide(name, share)
    chosen = [description for description in (player.description, whole) if description]
    is_measured = all(description["how"] != How.NONE.value for description in chosen)
    return PairSide(
        name,
        share,
        player.description["variant"],
        player.description["reason"],
        whole.get("variant", ""),
        is_measured=is_measured,
    )


def _notes(arrangement: Arrangement, sides: Sequence[PairSide], figures: SharingFigures) -> list[str]:
    notes = []
    if not arrangement.is_verified:
        notes.append("not verified on a GPU: nothing of this was ever run on one")
    if arrangement.whole is None:
        notes.append("the whole GPU cannot be had beside its parts: s, r, STP and the verdicts are not known")
    notes += [
        f"{side.name}: the bundle has no time at one of these shares, so an untuned variant ran; tune the model there"
        for side in sides
        if not side.is_measured
    ]
    notes += [
        f"{side.name}: the A/A control is {each.control.median:.2f} ({each.control.low:.2f} .. "
        f"{each.control.high:.2f}) in place of 1: the machine was not quiet, and i is no closer than that"
        for side, each in zip(sides, figures.sides, strict=False)
        if not _is_quiet(each.control)
    ]
    return notes


def _is_quiet(control: Estimate) -> bool:
    widest = max(abs(control.low - 1.0), abs(control.high - 1.0))
    return abs(control.median - 1.0) <= _CONTROL_ALLOWED and widest <= _CONTROL_WIDEST


def _overload_notes(sides: Sequence[PairSide], figures: SharingFigures, latencies: Sequence[RateLatency]) -> list[str]:
    return [
        f"{side.name}: {latency.rate_per_s:g} requests a second are more than the {each.per_s.median:.3g} that it does "
        "together, or too close to them: the queue would only grow, so no latencies were measured"
        for side, each, latency in zip(sides, figures.sides, latencies, strict=False)
        if latency.latency_s is None and latency.rate_per_s >= _BUSIEST * each.per_s.median
    ]
