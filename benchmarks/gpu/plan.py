"""The steps of both calls, the most telling first, and when each has ended."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.gpu.day import Place, Step

SHARES = ("mps:25", "mps:50", "full")
WHOLE_SHARES = ("mps:25", "full")
GREEN = ("green:16", "green:32", "green:64")
"""as many SMs as instances 1g, 2g and 4g of an H200 have"""
_PROVED = ("mps:25", "mps:50", "mps:100", "full")
_MEASURING_ENDS_S = 3.0
"""that `fractune measure` takes to start and to end beside its time"""


@dataclass(frozen=True)
class Scale:
    """Of a rehearsal."""

    times: float = 1.0
    peer: str = "nvidia"


def steps_of(place: Place, scale: Scale) -> list[Step]:
    made = _first(place, scale) if place.name == "A" else _second(place, scale)
    return [Step(each.name, each.question, scale.times * each.end_s, each.command) for each in made]


def _first(place: Place, scale: Scale) -> Sequence[Step]:
    return (
        Step("unpack", "the packages of the host", 12, _module(place, "unpack")),
        Step("look", "what is this machine?", 20, _module(place, "look")),
        Step("probe", "does each share hold, and does code run there?", 50, _measure(place, "probe", _PROVED)),
        Step("table", "four operators of the libraries' table", 140, _measure(place, "table", SHARES)),
        Step("model", "four operators of a whole model", 230, _measure(place, "encoder", SHARES)),
        Step("peers", "cuBLAS and cuDNN, outputs checked", 290, _module(place, "peers", "--peer", scale.peer)),
        Step("crowd", "1, 2 and 4 measurers: rate, ranks", 330, _module(place, "crowd")),
        Step("fault", "a fault beside three clients", 350, _module(place, "storm")),
        Step("green", "the winners at the sizes of MIG", 400, _module(place, "green")),
        Step("back", "the table, and no daemon is left", 412, _module(place, "back")),
    )


def _second(place: Place, scale: Scale) -> Sequence[Step]:
    return (
        Step("unpack", "the packages of the host", 25, _module(place, "unpack")),
        Step("whole", "a whole model against torch.compile", 190, _module(place, "whole", "--peer", scale.peer)),
        Step("second", "candidates that know call A's times", 340, _measure(place, "second", SHARES)),
        Step("back", "the table, and no daemon is left", 352, _module(place, "back")),
    )


def _module(place: Place, name: str, *options: str) -> Callable[[float], Sequence[str]]:
    """`benchmarks.gpu.NAME` with where it works, and the seconds that it has."""
    places = ["--carried", str(place.carried), "--work", str(place.work)]

    def command(seconds: float) -> list[str]:
        return [sys.executable, "-m", f"benchmarks.gpu.{name}", *places, "--seconds", f"{seconds:.1f}", *options]

    return command


def _measure(place: Place, name: str, shares: Sequence[str]) -> Callable[[float], Sequence[str]]:
    """`fractune measure` of a pack; its times are `results/NAME.times`. The pack is of this checkout."""
    pack, times = place.work / f"{name}.pack", place.results / f"{name}.times"
    options = ["--unsigned", "--shares", ",".join(shares), "--out", str(times)]

    def command(seconds: float) -> list[str]:
        minutes = f"{max(1.0, seconds - _MEASURING_ENDS_S) / 60:.3f}"
        return [sys.executable, "-m", "fractune.cli", "measure", str(pack), *options, "--minutes", minutes]

    return command
