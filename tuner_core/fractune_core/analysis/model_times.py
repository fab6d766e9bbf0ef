"""What a log keeps of whole models beside its records: of two that were measured on one processor together, and of one
in another runtime, timed beside its bundle.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.codec.messages import END_OF_TIME_S
from fractune_core.codec.plain_json import In, JsonObject
from fractune_core.errors import BadRequest
from fractune_core.names import Collection

OWN_UNITS, SAME_UNITS, INTERLEAVED = "own units", "same units", "in turn"
"""kinds of arrangements"""
_LONGEST = 200
"""characters of a text"""


@dataclass(frozen=True)
class PairedModel(JsonObject):
    """One of the two, or a process that streams through memory."""

    model_name: str
    """of the bundle, without its suffix; or `bubble:32MiB`"""
    share: str
    variant: str = ""
    """the variant of the bundle that ran; empty for a process that only streams through memory"""
    slowdown: Estimate | None = None
    """time beside the other over time alone on the whole; None for such a process, and where no share is the whole"""
    interference: Estimate | None = None
    """time beside the other over time alone at the share; None for such a process"""


@dataclass(frozen=True)
class MeasuredPair(JsonObject):
    """Two co-runners in one arrangement (`fractune pair`)."""

    pair_id: str
    """made by who measured it, so that it is kept once however often it is sent"""
    models: tuple[PairedModel, ...]
    """two"""
    arrangement: str
    """`cpu:1 + cpu:1, each on its own, of cpu:2`"""
    how: str
    """kind of the arrangement: OWN_UNITS, SAME_UNITS or INTERLEAVED"""
    host: str
    rounds: int
    measured_at: Annotated[float, In("measure_time")]
    """seconds since 1970"""
    stp: Estimate | None = None
    """above 1: together they do more work than one after the other; None if it is not known"""
    verdict: str = ""
    """`together`, `apart` or `tie`; empty if it is not known"""
    others_cores: float = 0.0
    """cores of both that other programs had meanwhile, on average"""

    def check(self) -> None:
        """Raises BadRequest for what no measurement gives."""
        fault = next(self._faults(), "")
        if fault:
            raise BadRequest(f"pair {self.pair_id[:_LONGEST]}: {fault}")

    def _faults(self) -> Iterator[str]:
        texts = [self.pair_id, self.arrangement, self.how, self.host, self.verdict]
        texts += [text for each in self.models for text in (each.model_name, each.share, each.variant)]
        if not 8 <= len(self.pair_id) <= 64 or not self.pair_id.isalnum():
            yield "pair_id must have 8 to 64 letters and digits"
        if any(len(text) > _LONGEST for text in texts):
            yield f"one of its texts is longer than {_LONGEST} characters"
        if len(self.models) != 2 or not all(each.model_name and each.share for each in self.models):
            yield "it must have two models, each with a name and a share"
        estimates = [self.stp, *(found for each in self.models for found in (each.slowdown, each.interference))]
        if not all(each.is_ratio for each in estimates if each is not None):
            yield "its ratios must be above 0 and finite, and an interval must hold its median"
        if self.rounds < 1:
            yield f"rounds is {self.rounds}; it must be 1 or more"
        if not 0 <= self.others_cores < math.inf:
            yield "others_cores must be 0 or more, and finite"
        if not 0 < self.measured_at < END_OF_TIME_S:
            yield "measure_time is missing, or none"


_MOST_INPUTS = 1000
_MOST_AXES = 64


@dataclass(frozen=True)
class RuntimeTime(JsonObject):
    """A runtime and a bundle at a share, interleaved (`fractune compete`)."""

    time_id: str
    """made by who measured it, so that it is kept once however often it is sent"""
    model: Annotated[str, In("model", Collection.MODELS)]
    """SHA-256 of the model file, 64 hex digits"""
    inputs: dict[str, list[int]]
    """shapes of all inputs"""
    share: str
    runtime: str
    """`onnxruntime` or `openvino`"""
    version: str
    loop_s: float
    """median of a request in a loop"""
    paced_s: float
    """of requests with pauses between them"""
    bundle_loop_s: float
    bundle_paced_s: float
    loop_ratio: Estimate
    """the bundle's time over the runtime's; above 1 the runtime is faster"""
    paced_ratio: Estimate
    host: str
    measured_at: Annotated[float, In("measure_time")]
    """seconds since 1970"""
    others_cores: float = 0.0
    """cores of the share that other programs had meanwhile, on average"""

    def check(self) -> None:
        """Raises BadRequest for what no measurement gives."""
        fault = next(self._faults(), "")
        if fault:
            raise BadRequest(f"time {self.time_id[:_LONGEST]}: {fault}")

    def _faults(self) -> Iterator[str]:
        if not 8 <= len(self.time_id) <= 64 or not self.time_id.isalnum():
            yield "time_id must have 8 to 64 letters and digits"
        if not all((self.model, self.share, self.runtime)):
            yield "it must have a model, a share and a runtime"
        if any(len(text) > _LONGEST for text in (self.share, self.runtime, self.version, self.host, *self.inputs)):
            yield f"one of its texts is longer than {_LONGEST} characters"
        if len(self.inputs) > _MOST_INPUTS or any(len(shape) > _MOST_AXES for shape in self.inputs.values()):
            yield f"it must have {_MOST_INPUTS} inputs at most, each with {_MOST_AXES} axes at most"
        times = (self.loop_s, self.paced_s, self.bundle_loop_s, self.bundle_paced_s)
        if not all(0 < secs < math.inf for secs in times):
            yield "its times must be above 0 and finite"
        if not (self.loop_ratio.is_ratio and self.paced_ratio.is_ratio):
            yield "its ratios must be above 0 and finite, and an interval must hold its median"
        if not 0 <= self.others_cores < math.inf:
            yield "others_cores must be 0 or more, and finite"
        if not 0 < self.measured_at < END_OF_TIME_S:
            yield "measure_time is missing, or none"
