"""What other runtimes take for a bundle's model at a share, beside the bundle itself, and which of them serves it.

It also holds what a check against another implementation of ONNX found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from fractune_core.agreement import QUANTIZED_ROUNDING
from fractune_core.codec.plain_json import JsonObject
from fractune_core.served import ServiceGoal, kept_part, widened

MODEL = "model.onnx"
"""entry of a bundle: the model file, if another runtime serves a share"""
ONNX_RUNTIME, OPENVINO = "onnxruntime", "openvino"
RUNTIMES = (ONNX_RUNTIME, OPENVINO)
OURS = "fractune"
EXACT_ONNX_RUNTIME = {"session.x64quantprecision": "1", "session.qdq_matmulnbits_accuracy_level": "1"}
"""settings with which ONNX Runtime's products of bytes do not saturate, and round no data to bytes"""
ONLY_ONNX = {"session.load_model_format": "ONNX"}
"""the setting with which ONNX Runtime never takes a file for one of its own format: a file may be of both, and hold
another model in each
"""


@dataclass(frozen=True)
class Runtime(JsonObject):
    """A runtime as it was timed."""

    version: str
    settings: dict[str, str]
    """beyond the number of threads, by the runtime's own names"""


@dataclass(frozen=True)
class Timed(JsonObject):
    """Medians of one contender, in seconds, and how many times as long the bundle takes."""

    loop_s: float
    paced_s: float
    """of requests with pauses between them"""
    loop: tuple[float, float, float] | None = None
    """the bundle's time over this one's: median, and the 95 % interval; None for the bundle itself"""
    paced: tuple[float, float, float] | None = None
    difference: float | None = None
    """the largest of its outputs to the bundle's, over the largest value"""


@dataclass(frozen=True)
class Compared(JsonObject):
    """The contenders at one share."""

    times: dict[str, Timed]
    """by runtime; the bundle itself is `fractune`"""
    refused: dict[str, str] = field(default_factory=dict)
    """runtimes that did not compete, with the reason"""
    others_cores: float = 0.0
    """cores of the share that other programs had meanwhile, on average"""
    by_default: Timed | None = None
    """ONNX Runtime with its own defaults, as programs have it: idle threads spin, products of bytes may saturate. None
    where that is how it was timed anyway. It serves nothing.
    """
    unproved: str = ""
    """what the outputs are if their agreement says nothing: NaN, or the same on all inputs; else empty"""

    def beside(self, others_cores: float, cores: int) -> Compared:
        """With the cores that other programs had, and intervals that are as wide as these times then allow."""
        kept = kept_part(others_cores, cores)
        times = {name: _beside(each, kept) for name, each in self.times.items()}
        by_default = self.by_default and _beside(self.by_default, kept)
        return replace(self, times=times, others_cores=others_cores, by_default=by_default)

    def as_programs_have(self, runtime: str) -> Timed:
        """The times of a runtime with its own defaults."""
        return self.by_default if runtime == ONNX_RUNTIME and self.by_default else self.times[runtime]

    def winner(self, goal: ServiceGoal) -> str:
        """The runtime that is faster than the bundle beyond the noise, the fastest of several; `fractune` if none is.
        The goal latency is about paced requests, throughput about a loop.
        """
        faster = self._faster(goal)
        return max(faster, key=lambda name: faster[name]) if faster else OURS

    def fastest_other(self, goal: ServiceGoal) -> str:
        """The fastest of the other runtimes, whether or not it is faster than the bundle; empty if none competed."""
        secs = {name: each.paced_s if goal == "latency" else each.loop_s for name, each in self.times.items()}
        return min(secs.keys() - {OURS}, key=lambda name: secs[name], default="")

    @property
    def winners(self) -> set[str]:
        """Other runtimes that win for some goal."""
        return {self.winner(goal) for goal in get_args(ServiceGoal)} - {OURS}

    def serving(self, *, alone: bool) -> set[str]:
        """Other runtimes that serve something: by being faster, or `alone`, because the bundle may not pad."""
        others = {self.fastest_other(goal) for goal in get_args(ServiceGoal)} - {""} if alone else set()
        return self.winners | others

    @property
    def faster(self) -> set[str]:
        """Other runtimes that are faster than the bundle for some goal."""
        return {name for goal in get_args(ServiceGoal) for name in self._faster(goal)}

    def _faster(self, goal: ServiceGoal) -> dict[str, float]:
        found = {name: each.paced if goal == "latency" else each.loop for name, each in self.times.items()}
        return {name: ratio[0] for name, ratio in found.items() if ratio is not None and ratio[1] > 1.0}


def _beside(timed: Timed, kept: float) -> Timed:
    return replace(timed, loop=_widened(timed.loop, kept), paced=_widened(timed.paced, kept))


def _widened(ratio: tuple[float, float, float] | None, kept: float) -> tuple[float, float, float] | None:
    return None if ratio is None else (ratio[0], *widened(*ratio[1:], kept, kept))


@dataclass(frozen=True)
class Between(JsonObject):
    """The contenders at sizes between two shapes. The bundle pads; the others run the sizes as they are."""

    sizes: dict[str, int]
    """by the symbols of the open axes; where a runtime was faster, it serves these sizes and smaller ones"""
    compared: Compared


def between_of(manifest: Mapping[str, Any]) -> dict[str, list[Between]]:
    """By share: what was compared at sizes that run padded in the shapes of this manifest. Raises ValueError."""
    return {share: [Between.from_json(each) for each in held] for share, held in manifest.get("between", {}).items()}


def all_compared(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Compared]]:
    """Every comparison of a manifest, with its share. Raises ValueError."""
    for share, each in manifest.get("compared", {}).items():
        yield share, Compared.from_json(each)
    for share, found in between_of(manifest).items():
        yield from ((share, each.compared) for each in found)


def compared_complaint(manifest: Mapping[str, Any]) -> str:
    """What is wrong with the fields `compared`, `between` and `runtimes` of a manifest, empty if nothing is."""
    try:
        found = list(all_compared(manifest))
        runtimes = {name: Runtime.from_json(each) for name, each in manifest.get("runtimes", {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        return f"'compared', 'between' and 'runtimes' are not comparisons by share and runtimes by name ({error})"
    if not {share for share, _ in found} <= set(manifest["shares"]):
        return "'compared' or 'between' has a share that 'shares' has not"
    compared = [each for _, each in found]
    names = {name for each in compared for name in (*each.times, *each.refused)}
    if not {*names, *runtimes} <= {OURS, *RUNTIMES}:
        return "'compared' or 'between' has an unknown runtime"
    texts = [each.version for each in runtimes.values()]
    texts += [text for each in runtimes.values() for pair in each.settings.items() for text in pair]
    texts += [reason for each in compared for reason in (*each.refused.values(), each.unproved)]
    if not all(map(str.isprintable, texts)):
        return "'compared', 'between' or 'runtimes' has a text that is not printable"
    winners = {name for each in compared for name in each.winners}
    if not winners <= set(runtimes):
        return f"'runtimes' lacks '{min(winners - set(runtimes))}', which serves a share"
    if winners and MODEL not in manifest["sha256"]:
        return f"'{MODEL}' is missing, which '{min(winners)}' needs"
    return ""


CHECKED = "checked"
"""of the manifest"""


@dataclass(frozen=True)
class Checked(JsonObject):
    """The sets of inputs on which the bundle's outputs equal the reference's."""

    reference: str = ""
    """what the outputs were compared with, and its version; empty if nothing was compared"""
    sets: dict[str, float] = field(default_factory=dict)
    """by set of inputs: the largest difference, over the largest value of its output"""
    variants: tuple[str, ...] = ()
    """the variants of the bundle that were compared"""
    skipped: dict[str, str] = field(default_factory=dict)
    """sets, and variants, that were not compared, with the reason"""
    reason: str = ""
    """why nothing was compared; empty if something was"""
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """by input of the bundle: the least and the largest number that is drawn. Integers are no index outside of their
    axis; with other numbers the outputs say something"""

    @property
    def is_equal(self) -> bool:
        """Whether the outputs equal the reference's; False if nothing was compared."""
        return bool(self.sets)

    @property
    def line(self) -> str:
        """For people."""
        if not self.is_equal:
            return f"the outputs were not compared with another runtime's: {self.reason}"
        difference = max(self.sets.values())
        count = f"{len(self.sets)} sets" if len(self.sets) > 1 else "one set"
        found = f"largest difference {difference:.1e} of the largest value" if difference else "to the last bit"
        if difference > QUANTIZED_ROUNDING:
            found += ", no more than right computations of this model differ by"
        left = "".join(f"; not compared: {name} ({why})" for name, why in self.skipped.items())
        return f"outputs equal {self.reference}'s on {count} of inputs ({', '.join(self.sets)}), {found}{left}"
