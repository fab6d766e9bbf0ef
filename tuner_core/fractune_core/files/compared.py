"""What other runtimes take for a bundle's model at a share, beside the bundle itself, and which of them serves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from fractune_core.codec.plain_json import JsonObject
from fractune_core.served import ServiceGoal

MODEL = "model.onnx"
"""entry of a bundle: the model file, if another runtime serves a share"""
ONNX_RUNTIME, OPENVINO = "onnxruntime", "openvino"
RUNTIMES = (ONNX_RUNTIME, OPENVINO)
OURS = "fractune"


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

    def winner(self, goal: ServiceGoal) -> str:
        """The runtime that is faster than the bundle beyond the noise, the fastest of several; `fractune` if none is.
        The goal latency is about paced requests, throughput about a loop.
        """
        found = {name: each.paced if goal == "latency" else each.loop for name, each in self.times.items()}
        faster = {name: ratio[0] for name, ratio in found.items() if ratio is not None and ratio[1] > 1.0}
        return max(faster, key=lambda name: faster[name]) if faster else OURS

    @property
    def winners(self) -> set[str]:
        """Other runtimes that win for some goal."""
        return {self.winner(goal) for goal in get_args(ServiceGoal)} - {OURS}


def compared_complaint(manifest: Mapping[str, Any]) -> str:
    """What is wrong with the fields `compared` and `runtimes` of a manifest, empty if nothing is."""
    try:
        compared = {share: Compared.from_json(each) for share, each in manifest.get("compared", {}).items()}
        runtimes = {name: Runtime.from_json(each) for name, each in manifest.get("runtimes", {}).items()}
    except (ValueError, AttributeError) as error:
        return f"'compared' and 'runtimes' are not comparisons by share and runtimes by name ({error})"
    if not set(compared) <= set(manifest["shares"]):
        return "'compared' has a share that 'shares' has not"
    names = {name for each in compared.values() for name in (*each.times, *each.refused)}
    if not {*names, *runtimes} <= {OURS, *RUNTIMES}:
        return "'compared' has an unknown runtime"
    texts = [each.version for each in runtimes.values()]
    texts += [text for each in runtimes.values() for pair in each.settings.items() for text in pair]
    texts += [reason for each in compared.values() for reason in each.refused.values()]
    if not all(map(str.isprintable, texts)):
        return "'compared' or 'runtimes' has a text that is not printable"
    winners = {name for each in compared.values() for name in each.winners}
    if not winners <= set(runtimes):
        return f"'runtimes' lacks '{min(winners - set(runtimes))}', which serves a share"
    if winners and MODEL not in manifest["sha256"]:
        return f"'{MODEL}' is missing, which '{min(winners)}' needs"
    return ""
